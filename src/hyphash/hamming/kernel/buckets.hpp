// Exact search in sub-linear time: multi-index hashing over the distinct codes.
//
// The bits of a code are cut into substrings of about 16 bits, one table each: a directory that leads from the
// value of the substring to the codes that have it. If all T tables are open up to s bits around the query's own
// substrings, then every code at most T (s + 1) − 1 bits away has been met: else at least s + 1 bits would differ in
// each of the T substrings. Likewise one table more, opened up to s + 1, is worth one bit more. So the search goes
// in passes s = 0, 1, 2 …, and ends when k codes are within the distance that is certain. A pass only takes codes
// that it makes certain; far ones of the same buckets are met again, in the cache, by the next pass.
//
// A pass opens ever more buckets. When the next would cost more than a scan of all codes (k is huge, few codes pass
// the mask, or the query is far from everything), the codes are scanned; they lie ready in the order of their ids.
//
// Identical codes share a bucket: only distinct codes are in the tables; the ids of each lie together, ascending.

#pragma once

#include <memory>
#include <type_traits>

#include "scan.hpp"

namespace hyphash {

constexpr int MAX_BITS = 256, MAX_TABLES = 16;

struct Substring {
    int start, width;

    Substring(int bits, int tables, int t) : start(bits * t / tables), width(bits * (t + 1) / tables - start) {}
    Substring() : start(0), width(0) {}

    uint32_t of(uint64_t code) const { return uint32_t(code >> start) & ((uint32_t(1) << width) - 1); }
    uint32_t of(const uint8_t* code, int size) const {  // of any length
        uint64_t word = 0;
        std::memcpy(&word, code + start / 8, size_t(std::min(4, size - start / 8)));
        return uint32_t(word >> start % 8) & ((uint32_t(1) << width) - 1);
    }
    // A code of up to 64 bits without the substring, and with it put back.
    uint64_t rest(uint64_t code) const {
        const uint64_t low = code & ((uint64_t(1) << start) - 1);
        return start + width >= 64 ? low : low | code >> (start + width) << start;
    }
    uint64_t whole(uint64_t rest, uint32_t value) const {
        const uint64_t low = rest & ((uint64_t(1) << start) - 1), high = rest >> start;
        return low | uint64_t(value) << start | (start + width >= 64 ? 0 : high << (start + width));
    }
};

// What a table holds of each code: nothing, if the substring is all of it; the rest of the code, so that a bucket
// can be searched where it lies; or, for long codes, the first of its ids.
enum class Entry { none, rest32, rest64, id };

inline Entry entry_for(int bits, int tables) {
    if (tables == 1) return Entry::none;
    if (bits > 64) return Entry::id;
    return bits - bits / tables <= 32 ? Entry::rest32 : Entry::rest64;
}
inline int entry_bytes(Entry entry) { return entry == Entry::none ? 0 : entry == Entry::rest64 ? 8 : 4; }

struct Segment {  // an immutable part of an index
    int bits, tables;
    int64_t first_id, codes, distinct;
    const uint32_t* directories;  // of all tables, 2^width + 1 numbers each
    const uint8_t* entries;       // of all tables, `stride` entries each, as many as can be read past the last
    int64_t stride;
    const uint32_t* starts;  // distinct + 1: where the ids of each code start; none if the directory says so
    const uint32_t* ids;     // relative to first_id
    const uint8_t* rows;     // all codes in the order of their ids

    const uint32_t* directory(int t) const {
        int64_t at = 0;
        for (int i = 0; i < t; ++i) at += (int64_t(1) << Substring(bits, tables, i).width) + 1;
        return directories + at;
    }
};

// Searches one segment; keeps its memory from query to query.
class BucketSearch {
public:
    bool never_scan = false;  // for tests: small segments are hardly worth their tables

    // Append the k nearest codes within `radius` to `out`, as distance << 48 | id in order.
    void run(const Instructions& instructions, const Segment& segment, const bool* mask, const uint8_t* query,
             int64_t k, int radius, std::vector<uint64_t>& out) {
        instructions_ = &instructions;
        segment_ = &segment;
        mask_ = mask ? mask + segment.first_id : nullptr;
        k_ = k;
        prepare(query, radius);
        int certain = -1;  // all codes up to this distance have been met
        for (int reach = 0; found_ < k_ && certain < radius; ++reach) {
            if (scan_is_cheaper(reach)) return scan(radius, out);
            certain = pass(reach, certain, radius);
        }
        for (int d = 0; d <= certain; ++d) write(d, out);
    }

private:
    static constexpr int PROBES = 64;  // buckets whose directory entries are fetched together
    static constexpr int AHEAD = 8;    // buckets that are on their way into the cache while one is looked at

    void prepare(const uint8_t* query, int radius) {
        const Segment& s = *segment_;
        size_ = (s.bits + 7) / 8;
        entry_ = entry_for(s.bits, s.tables);
        query_ = query;
        code_ = Rows{query, 1, size_}.word(0);
        for (int t = 0; t < s.tables; ++t) {
            part_[t] = Substring(s.bits, s.tables, t);
            value_[t] = part_[t].of(query, size_);
            if (s.bits <= 64) rest_[t] = part_[t].rest(code_);
            directory_[t] = s.directory(t);
        }
        for (int d = 0; d <= used_levels_; ++d) {
            numbers_[d].clear();
            pending_[d].clear();
            runs_[d].clear();
        }
        used_levels_ = radius;
        found_ = 0;
    }

    // From now on take codes farther than `certain`, up to the ceiling.
    void start_pass(int certain, int ceiling) {
        std::fill(done_, done_ + segment_->tables, -1);
        certain_ = certain;
        ceiling_ = ceiling;
        missing_ = k_ - found_;
        taken_ = 0;
        std::fill(counts_ + certain + 1, counts_ + ceiling + 1, 0);
    }

    // Open all tables up to `reach`; the distance that is certain then.
    int pass(int reach, int certain, int radius) {
        const int tables = segment_->tables;
        start_pass(certain, std::min(radius, tables * (reach + 1) - 1));
        if (entry_ == Entry::none) done_[0] = reach - 1;  // a direct table's nearer buckets hold nothing new
        for (int step = (done_[0] + 1) * tables; step < tables * (reach + 1); ++step) {
            extend(step % tables);
            if (step <= certain) continue;
            found_ += settle(++certain);
            if (found_ >= k_ || certain >= radius) break;
        }
        return certain;
    }

    bool scan_is_cheaper(int reach) const {
        if (never_scan) return false;
        constexpr double ENTRY = 0.12, BYTE = 0.04;  // nanoseconds, roughly
        const double probe = 40 + 80 * std::min(1.0, double(segment_->distinct) / 1e7);  // large tables miss the cache
        double pass = 0;
        for (int t = 0; t < segment_->tables; ++t) {
            double buckets = 1;
            for (int i = 0; i < reach; ++i) buckets = buckets * (part_[t].width - i) / (i + 1);
            pass += buckets * (probe + ENTRY * double(segment_->distinct) / double(uint64_t(1) << part_[t].width));
        }
        return pass > BYTE * double(segment_->codes) * size_ / 2;
    }

    void scan(int radius, std::vector<uint64_t>& out) {
        const Rows query{query_, 1, size_}, rows{segment_->rows, segment_->codes, size_};
        for (const Selection& found : select(*instructions_, query, rows, mask_, radius, {k_, nullptr}, 0,
                                             {0, segment_->codes})) {
            for (const uint64_t entry : found) out.push_back(entry + uint64_t(segment_->first_id));
        }
    }

    // ---- opening buckets --------------------------------------------------------------------------------------

    void extend(int t) {
        const int distance = ++done_[t];
        const uint32_t end = uint32_t(1) << part_[t].width;
        uint32_t patterns[PROBES];
        int count = 0;
        for (uint32_t pattern = (uint32_t(1) << distance) - 1; pattern < end;) {
            patterns[count++] = pattern;
            __builtin_prefetch(directory_[t] + (value_[t] ^ pattern));
            if (count == PROBES) {
                open(t, patterns, count);
                count = 0;
            }
            if (!pattern) break;
            const uint32_t lowest = pattern & -pattern, up = pattern + lowest;  // the next with as many bits
            pattern = up | ((pattern ^ up) >> 2) / lowest;
        }
        open(t, patterns, count);
    }

    void open(int t, const uint32_t* patterns, int count) {
        Range ranges[PROBES];
        const int bytes = entry_bytes(entry_);
        const uint8_t* entries = segment_->entries + t * segment_->stride * bytes;
        for (int i = 0; i < count + AHEAD; ++i) {
            if (i < count) {
                const uint32_t value = value_[t] ^ patterns[i];
                ranges[i] = {directory_[t][value], directory_[t][value + 1]};
                const uint8_t* line = entries + ranges[i].start * bytes;
                const uint8_t* last = entries + std::min(ranges[i].end, ranges[i].start + 256) * bytes;
                for (; line < last; line += 64) __builtin_prefetch(line);
            }
            if (i < AHEAD || done_[t] > ceiling_) continue;
            const Range range = ranges[i - AHEAD];
            if (entry_ == Entry::none) {
                if (range.start < range.end) take(done_[t], value_[t] ^ patterns[i - AHEAD]);
            } else if (entry_ == Entry::id) {
                look_at_rows(t, range);
            } else {
                look_at_rests(t, range, patterns[i - AHEAD], entries);
            }
        }
    }

    void look_at_rests(int t, Range range, uint32_t pattern, const uint8_t* entries) {
        const int bytes = entry_bytes(entry_);
        for (int64_t at = range.start; at < range.end; at += GROUP) {
            const int64_t count = std::min<int64_t>(GROUP, range.end - at);
            uint64_t hits;
            instructions_->match(entries + at * bytes, bytes, rest_[t], count, ceiling_ - done_[t], &hits);
            for (hits &= first_bits(count); hits; hits &= hits - 1) {
                const int64_t number = at + __builtin_ctzll(hits);
                uint64_t rest = 0;
                std::memcpy(&rest, entries + number * bytes, size_t(bytes));
                const uint64_t differing = part_[t].whole(rest ^ rest_[t], pattern);
                const int distance = __builtin_popcountll(differing);
                auto in_other = [&](int other) { return __builtin_popcount(part_[other].of(differing)); };
                if (!is_wanted(distance) || met_before(t, in_other)) continue;
                if (t == 0) {
                    take(distance, uint32_t(number));
                } else {
                    pending_[distance].push_back(differing ^ code_);
                    note(distance);
                }
            }
        }
    }

    void look_at_rows(int t, Range range) {
        const uint32_t* first_ids = reinterpret_cast<const uint32_t*>(segment_->entries) + t * segment_->stride;
        for (int64_t at = range.start; at < range.end; ++at) {
            if (at + AHEAD < range.end) __builtin_prefetch(row(first_ids[at + AHEAD]));
            const uint8_t* code = row(first_ids[at]);
            const int distance = exact_distance(query_, code, size_);
            auto in_other = [&](int other) { return __builtin_popcount(part_[other].of(code, size_) ^ value_[other]); };
            if (!is_wanted(distance) || met_before(t, in_other)) continue;
            if (t == 0) {
                take(distance, uint32_t(at));
            } else {
                pending_[distance].push_back(first_ids[at]);
                note(distance);
            }
        }
    }

    const uint8_t* row(uint64_t id) const { return segment_->rows + id * uint64_t(size_); }
    bool is_wanted(int distance) const { return certain_ < distance && distance <= ceiling_; }
    // Whether a code in table t was met by this pass in another one: its substring there is in an open bucket.
    template <class Distance>
    bool met_before(int t, Distance distance_in) const {
        for (int other = 0; other < segment_->tables; ++other) {
            if (other != t && distance_in(other) <= done_[other]) return true;
        }
        return false;
    }

    void take(int distance, uint32_t number) {
        numbers_[distance].push_back(number);
        note(distance);
    }

    // Every distinct code stands for at least one id, if none is masked; so enough of them sink the ceiling.
    void note(int distance) {
        ++counts_[distance];
        ++taken_;
        while (!mask_ && taken_ - counts_[ceiling_] >= missing_) taken_ -= counts_[ceiling_--];
    }

    // ---- from codes to ids ------------------------------------------------------------------------------------
    // Each step is a walk over places all over the memory, so the places of later codes are fetched ahead.

    const uint32_t* starts() const { return entry_ == Entry::none ? directory_[0] : segment_->starts; }

    // Where in the first table, in whose order the codes are numbered, a code met in another table must be.
    Range bucket_of(uint64_t pending) const {
        const uint32_t value = entry_ == Entry::id ? part_[0].of(row(pending), size_) : part_[0].of(pending);
        return {directory_[0][value], directory_[0][value + 1]};
    }

    uint32_t number_of(uint64_t pending, Range bucket) const {
        auto find = [&](auto* entries, auto is_less) {
            return uint32_t(std::partition_point(entries + bucket.start, entries + bucket.end, is_less) - entries);
        };
        const auto* numbers = reinterpret_cast<const uint32_t*>(segment_->entries);
        if (entry_ == Entry::id) {
            return find(numbers, [&](uint32_t id) { return std::memcmp(row(id), row(pending), size_t(size_)) < 0; });
        }
        const uint64_t wanted = part_[0].rest(pending);
        if (entry_ == Entry::rest32) return find(numbers, [&](uint32_t rest) { return rest < wanted; });
        return find(reinterpret_cast<const uint64_t*>(segment_->entries), [&](uint64_t rest) { return rest < wanted; });
    }

    void find_numbers(int distance) {
        const auto& codes = pending_[distance];
        const int64_t bytes = entry_bytes(entry_);
        Range buckets[AHEAD];
        for (size_t i = 0; i < codes.size() + AHEAD; ++i) {
            if (i >= AHEAD) numbers_[distance].push_back(number_of(codes[i - AHEAD], buckets[i % AHEAD]));
            if (i >= codes.size()) continue;
            const Range bucket = buckets[i % AHEAD] = bucket_of(codes[i]);
            const int64_t apart = std::max<int64_t>(64 / bytes, (bucket.end - bucket.start) / 8);
            for (int64_t at = bucket.start; at < bucket.end; at += apart) {
                __builtin_prefetch(segment_->entries + at * bytes);
            }
        }
    }

    // Find the ids of all codes at this distance; how many there are (k will do).
    int64_t settle(int distance) {
        find_numbers(distance);
        const auto& numbers = numbers_[distance];
        int64_t sum = 0;
        for (size_t i = 0; i < numbers.size(); ++i) {
            if (i + AHEAD < numbers.size()) __builtin_prefetch(starts() + numbers[i + AHEAD]);
            const uint32_t start = starts()[numbers[i]], end = starts()[numbers[i] + 1];
            __builtin_prefetch(segment_->ids + start);
            runs_[distance].emplace_back(start, end);
            sum += mask_ ? count_allowed(start, end) : end - start;
        }
        return sum;
    }

    int64_t count_allowed(uint32_t start, uint32_t end) const {
        int64_t sum = 0;
        for (uint32_t i = start; i < end && sum < k_; ++i) sum += mask_[segment_->ids[i]];
        return sum;
    }

    void write(int distance, std::vector<uint64_t>& out) {
        const int64_t room = k_ - int64_t(out.size());
        const size_t first = out.size();
        for (const auto& [start, end] : runs_[distance]) {
            int64_t left = room;
            for (uint32_t i = start; i < end && left; ++i) {
                const uint32_t id = segment_->ids[i];
                if (mask_ && !mask_[id]) continue;
                out.push_back(uint64_t(distance) << 48 | uint64_t(segment_->first_id + id));
                --left;
            }
        }
        if (int64_t(out.size() - first) > room) {
            std::nth_element(out.begin() + int64_t(first), out.begin() + int64_t(first) + room, out.end());
            out.resize(first + size_t(room));
        }
        std::sort(out.begin() + int64_t(first), out.end());
    }

    const Instructions* instructions_ = nullptr;
    const Segment* segment_ = nullptr;
    const bool* mask_ = nullptr;
    int64_t k_ = 0;
    int64_t found_ = 0;               // ids within the certain distance
    int64_t missing_ = 0;             // ids that were missing when the pass started
    int64_t taken_ = 0;               // distinct codes taken by this pass, up to the ceiling
    int certain_ = -1, ceiling_ = 0;  // the pass wants codes between these distances
    int size_ = 0, used_levels_ = -1;
    Entry entry_ = Entry::none;
    const uint8_t* query_ = nullptr;
    uint64_t code_ = 0;  // the query, if it is short
    Substring part_[MAX_TABLES];
    uint32_t value_[MAX_TABLES];
    uint64_t rest_[MAX_TABLES];
    const uint32_t* directory_[MAX_TABLES];
    int done_[MAX_TABLES];  // how far each table is open
    std::vector<uint32_t> numbers_[MAX_BITS + 1];  // of the distinct codes met, by distance
    std::vector<uint64_t> pending_[MAX_BITS + 1];  // codes (or ids of long ones) whose numbers are not known yet
    std::vector<std::pair<uint32_t, uint32_t>> runs_[MAX_BITS + 1];  // where their ids start and end
    int64_t counts_[MAX_BITS + 1] = {};
};

// ---- an index: segments, then codes that are in none yet ----------------------------------------------------------

struct IndexView {
    int bits;
    std::vector<Segment> segments;
    Rows tail;
    int64_t tail_id;  // of its first code
    bool never_scan = false;
};

// The k nearest of one query, into `parts` by ascending ids. Later parts have greater ids: once k codes are found,
// only nearer ones count.
inline void search_parts(const Instructions& instructions, const IndexView& index, const bool* mask,
                         const uint8_t* query, int64_t k, std::vector<std::vector<uint64_t>>& parts) {
    thread_local BucketSearch buckets;
    buckets.never_scan = index.never_scan;
    thread_local std::vector<int64_t> counts;
    counts.assign(size_t(index.bits) + 1, 0);
    parts.resize(index.segments.size() + 1);
    int radius = index.bits;
    for (size_t i = 0; i < index.segments.size(); ++i) {
        parts[i].clear();
        if (radius < 0) continue;
        buckets.run(instructions, index.segments[i], mask, query, k, radius, parts[i]);
        for (const uint64_t entry : parts[i]) ++counts[size_t(Selection::distance(entry))];
        int64_t sum = 0;
        for (int d = 0; d <= radius; ++d) {
            if ((sum += counts[size_t(d)]) >= k) radius = d - 1;
        }
    }
    parts.back().clear();
    if (radius < 0 || !index.tail.count) return;
    const bool* tail_mask = mask ? mask + index.tail_id : nullptr;
    for (const Selection& found : select(instructions, {query, 1, index.tail.size}, index.tail, tail_mask, radius,
                                         {k, nullptr}, 0, {0, index.tail.count})) {
        for (const uint64_t entry : found) parts.back().push_back(entry + uint64_t(index.tail_id));
    }
}

inline void search_index(const Instructions& instructions, const IndexView& index, Rows queries, const bool* mask,
                         int64_t k, int threads, int32_t* distances, int64_t* ids) {
    constexpr int64_t PER_TASK = 4;
    auto work = [&](int64_t task) {
        thread_local std::vector<std::vector<uint64_t>> parts;
        thread_local std::vector<Span> spans;
        for (int64_t q = task * PER_TASK; q < std::min((task + 1) * PER_TASK, queries.count); ++q) {
            search_parts(instructions, index, mask, queries[q], k, parts);
            spans.clear();
            for (const auto& part : parts) {
                if (!part.empty()) spans.push_back({part.data(), part.data() + part.size()});
            }
            write_nearest(spans, k, index.bits, distances + q * k, ids + q * k);
        }
    };
    const bool few = queries.count < 8 * PER_TASK;  // too few microseconds of work for more than one thread
    parallel(few ? 1 : threads, (queries.count + PER_TASK - 1) / PER_TASK, work);
}

// ---- building -----------------------------------------------------------------------------------------------------

// Order the codes by (first substring, rest, id); the number of distinct ones. `order` gets their ids, and
// `words` the codes in this order, if they are short.
inline int64_t sort_codes(Rows codes, int bits, int tables, int threads, uint32_t* order, uint64_t* words) {
    using Keyed = std::pair<uint64_t, uint32_t>;
    const Substring first(bits, tables, 0);  // it starts at bit 0, so the first word of a long code has it too
    const int64_t buckets = int64_t(1) << first.width, per_task = std::max<int64_t>(1, buckets / 256);
    std::vector<uint32_t> begin(size_t(buckets) + 2, 0);
    std::unique_ptr<Keyed[]> keyed(new Keyed[size_t(codes.count)]);
    for (int64_t i = 0; i < codes.count; ++i) ++begin[first.of(codes.word(i)) + 2];
    for (size_t v = 2; v < begin.size(); ++v) begin[v] += begin[v - 1];
    for (int64_t i = 0; i < codes.count; ++i) {
        const uint64_t word = codes.word(i);
        keyed[begin[first.of(word) + 1]++] = {word, uint32_t(i)};
    }
    auto compare = [&](const Keyed& a, const Keyed& b) {  // all of one bucket
        return bits <= 64 ? (a.first > b.first) - (a.first < b.first)
                          : std::memcmp(codes[a.second], codes[b.second], size_t(codes.size));
    };
    std::atomic<int64_t> distinct{0};
    parallel(threads, (buckets + per_task - 1) / per_task, [&](int64_t task) {
        int64_t found = 0;
        for (int64_t v = task * per_task; v < std::min((task + 1) * per_task, buckets); ++v) {
            const size_t from = begin[size_t(v)], to = begin[size_t(v) + 1];
            std::sort(&keyed[from], &keyed[to], [&](const Keyed& a, const Keyed& b) {
                const int order = compare(a, b);
                return order ? order < 0 : a.second < b.second;
            });
            for (size_t i = from; i < to; ++i) {
                order[i] = keyed[i].second;
                if (words) words[i] = keyed[i].first;
                found += i == from || compare(keyed[i - 1], keyed[i]) != 0;
            }
        }
        distinct += found;
    });
    return distinct;
}

// Fill the tables of a segment of short codes from the ordered codes.
inline void fill_tables(const uint64_t* words, const Segment& segment, int threads, uint32_t* directories,
                        uint8_t* entries, uint32_t* starts) {
    const Entry entry = entry_for(segment.bits, segment.tables);
    std::unique_ptr<uint64_t[]> distinct(new uint64_t[size_t(segment.distinct)]);
    int64_t count = 0;
    for (int64_t i = 0; i < segment.codes; ++i) {
        if (i && words[i] == words[i - 1]) continue;
        if (entry != Entry::none) starts[count] = uint32_t(i);
        distinct[size_t(count++)] = words[i];
    }
    if (entry == Entry::none) {  // a direct table leads to ids
        for (int64_t i = 0; i < segment.codes; ++i) ++directories[words[i] + 1];
        for (int64_t v = 0; v < int64_t(1) << segment.bits; ++v) directories[v + 1] += directories[v];
        return;
    }
    starts[count] = uint32_t(segment.codes);
    parallel(threads, segment.tables, [&](int64_t t) {
        const Substring part(segment.bits, segment.tables, int(t));
        uint32_t* directory = directories + (segment.directory(int(t)) - segment.directories);
        for (int64_t i = 0; i < count; ++i) ++directory[part.of(distinct[size_t(i)]) + 1];
        for (int64_t v = 0; v < int64_t(1) << part.width; ++v) directory[v + 1] += directory[v];
        std::vector<uint32_t> next(directory, directory + (size_t(1) << part.width));
        auto place_all = [&](auto* table) {
            for (int64_t i = 0; i < count; ++i) {
                const uint64_t code = distinct[size_t(i)];
                table[next[part.of(code)]++] = std::remove_reference_t<decltype(*table)>(part.rest(code));
            }
        };
        if (entry == Entry::rest32) place_all(reinterpret_cast<uint32_t*>(entries) + t * segment.stride);
        if (entry == Entry::rest64) place_all(reinterpret_cast<uint64_t*>(entries) + t * segment.stride);
    });
}

// The same for long codes.
inline void fill_long_tables(Rows codes, const Segment& segment, int threads, uint32_t* directories,
                             uint8_t* entries, uint32_t* starts) {
    std::vector<uint32_t> first_ids;
    for (int64_t i = 0; i < segment.codes; ++i) {
        const uint32_t id = segment.ids[i];
        if (i && !std::memcmp(codes[id], codes[segment.ids[i - 1]], size_t(codes.size))) continue;
        starts[first_ids.size()] = uint32_t(i);
        first_ids.push_back(id);
    }
    starts[first_ids.size()] = uint32_t(segment.codes);
    parallel(threads, segment.tables, [&](int64_t t) {
        const Substring part(segment.bits, segment.tables, int(t));
        uint32_t* directory = directories + (segment.directory(int(t)) - segment.directories);
        for (const uint32_t id : first_ids) ++directory[part.of(codes[id], codes.size) + 1];
        for (int64_t v = 0; v < int64_t(1) << part.width; ++v) directory[v + 1] += directory[v];
        std::vector<uint32_t> next(directory, directory + (size_t(1) << part.width));
        uint32_t* table = reinterpret_cast<uint32_t*>(entries) + t * segment.stride;
        for (const uint32_t id : first_ids) table[next[part.of(codes[id], codes.size)]++] = id;
    });
}

}  // namespace hyphash
