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
// Identical codes share a bucket: only distinct codes are in the tables. The ids of each lie together, ascending, and
// every entry says where, so that from a code that is met to its ids it takes two looks all over the memory.
//
// The tables come from a file that was not read through when it was opened. So every number in them is compared with
// what there is before anything is looked up by it: damaged tables end a search, or give wrong answers, never a crash.

#pragma once

#include <memory>
#include <stdexcept>

#include "scan.hpp"

namespace hyphash {

constexpr int MAX_TABLES = 16;
constexpr uint32_t LAST = uint32_t(1) << 31;  // marks the last id of a code

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
    const uint32_t* starts;  // of all tables, `distinct` each: where an entry's ids start; none if the directory says
    const uint32_t* ids;     // relative to first_id
    const uint8_t* rows;     // all codes in the order of their ids

    const uint32_t* directory(int t) const {
        int64_t at = 0;
        for (int i = 0; i < t; ++i) at += (int64_t(1) << Substring(bits, tables, i).width) + 1;
        return directories + at;
    }
};

// Whether a number in a table leads to something.
inline void require(bool sound) {
    if (!sound) throw std::out_of_range("its tables contradict each other");
}

// Searches one segment; keeps its memory from query to query.
class BucketSearch {
public:
    bool never_scan = false;  // for tests: small segments are hardly worth their tables

    // Write the k nearest codes within `radius` to `out`, as distance << 48 | id, by ascending ids.
    void run(const Instructions& instructions, const Segment& segment, const bool* mask, const uint8_t* query,
             int64_t k, int radius, std::vector<uint64_t>& out) {
        instructions_ = &instructions;
        segment_ = &segment;
        mask_ = mask ? mask + segment.first_id : nullptr;
        k_ = k;
        out_ = &out;
        out.clear();
        prepare(query, radius);
        int certain = -1;  // all codes up to this distance have been met, and their ids are out
        for (int reach = 0; found() < k_ && certain < radius; ++reach) {
            if (scan_is_cheaper(reach)) return scan(radius);
            certain = pass(reach, certain, radius);
        }
        sort_by_id(out, segment.first_id + segment.codes);
    }

private:
    static constexpr int PROBES = 64;  // buckets whose directory entries are fetched together
    static constexpr int AHEAD = 8;    // buckets that are on their way into the cache while one is looked at

    void prepare(const uint8_t* query, int radius) {
        const Segment& s = *segment_;
        size_ = (s.bits + 7) / 8;
        entry_ = entry_for(s.bits, s.tables);
        starts_ = entry_ == Entry::none ? s.directories : s.starts;
        query_ = query;
        code_ = Rows{query, 1, size_}.word(0);
        for (int t = 0; t < s.tables; ++t) {
            part_[t] = Substring(s.bits, s.tables, t);
            value_[t] = part_[t].of(query, size_);
            if (s.bits <= 64) rest_[t] = part_[t].rest(code_);
            directory_[t] = s.directory(t);
        }
        for (int d = 0; d <= used_levels_; ++d) met_[d].clear();
        used_levels_ = radius;
    }

    // From now on take codes farther than `certain`, up to the ceiling.
    void start_pass(int certain, int ceiling) {
        std::fill(done_, done_ + segment_->tables, -1);
        certain_ = certain;
        ceiling_ = ceiling;
        missing_ = k_ - found();
        taken_ = 0;
        std::fill(&counts_[certain + 1], &counts_[ceiling] + 1, 0);
    }

    // Open all tables up to `reach`; the distance that is certain then.
    int pass(int reach, int certain, int radius) {
        const int tables = segment_->tables;
        start_pass(certain, std::min(radius, tables * (reach + 1) - 1));
        if (entry_ == Entry::none) done_[0] = reach - 1;  // a direct table's nearer buckets hold nothing new
        for (int step = (done_[0] + 1) * tables; step < tables * (reach + 1); ++step) {
            extend(step % tables);
            if (step <= certain) continue;
            write_ids(++certain);
            if (found() >= k_ || certain >= radius) break;
        }
        return certain;
    }

    bool scan_is_cheaper(int reach) const {
        if (never_scan) return false;
        constexpr double HIT = 45, ENTRY = 0.12, BYTE = 0.02;  // nanoseconds, roughly
        const double probe = 40 + 80 * std::min(1.0, double(segment_->distinct) / 1e7);  // large tables miss the cache
        double pass = HIT * double(k_ - found());
        for (int t = 0; t < segment_->tables; ++t) {
            double buckets = 1;
            for (int i = 0; i < reach; ++i) buckets = buckets * (part_[t].width - i) / (i + 1);
            pass += buckets * (probe + ENTRY * double(segment_->distinct) / double(uint64_t(1) << part_[t].width));
        }
        return pass > BYTE * double(segment_->codes) * size_;
    }

    void scan(int radius) {
        out_->clear();
        const Rows query{query_, 1, size_}, rows{segment_->rows, segment_->codes, size_};
        for (const Selection& found : select(*instructions_, query, rows, mask_, radius, {k_, nullptr}, 0,
                                             {0, segment_->codes})) {
            for (const uint64_t entry : found) out_->push_back(entry + uint64_t(segment_->first_id));
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
        const int64_t all = entry_ == Entry::none ? segment_->codes : segment_->distinct;
        for (int i = 0; i < count + AHEAD; ++i) {
            if (i < count) {
                const uint32_t value = value_[t] ^ patterns[i];
                ranges[i] = {directory_[t][value], directory_[t][value + 1]};
                require(ranges[i].start <= ranges[i].end && ranges[i].end <= all);
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
                const uint8_t* entry = entries + number * bytes;
                const uint64_t rest = bytes == 4 ? load32(entry) : load64(entry);
                const uint64_t differing = part_[t].whole(rest ^ rest_[t], pattern);
                const int distance = __builtin_popcountll(differing);
                auto in_other = [&](int other) { return __builtin_popcount(part_[other].of(differing)); };
                if (is_wanted(distance) && !met_before(t, in_other)) take(distance, t * segment_->distinct + number);
            }
        }
    }

    void look_at_rows(int t, Range range) {
        const uint32_t* first_ids = reinterpret_cast<const uint32_t*>(segment_->entries) + t * segment_->stride;
        for (int64_t at = range.start; at < range.end; ++at) {
            if (at + AHEAD < range.end) __builtin_prefetch(row(first_ids[at + AHEAD]));
            require(first_ids[at] < segment_->codes);
            const uint8_t* code = row(first_ids[at]);
            const int distance = exact_distance(query_, code, size_);
            auto in_other = [&](int other) { return __builtin_popcount(part_[other].of(code, size_) ^ value_[other]); };
            if (is_wanted(distance) && !met_before(t, in_other)) take(distance, t * segment_->distinct + at);
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

    // Every code stands for at least one id, if none is masked; so enough of them sink the ceiling.
    void take(int distance, int64_t entry) {
        __builtin_prefetch(starts_ + entry);
        met_[distance].push_back(entry);
        ++counts_[distance];
        ++taken_;
        while (!mask_ && taken_ - counts_[ceiling_] >= missing_) taken_ -= counts_[ceiling_--];
    }

    // ---- from codes to ids ------------------------------------------------------------------------------------

    int64_t found() const { return int64_t(out_->size()); }

    // Write out the ids of all codes at this distance, or as many of the first as are missing.
    void write_ids(int distance) {
        const int64_t before = found(), room = k_ - before;
        for (int64_t& entry : met_[distance]) {
            entry = starts_[entry];
            __builtin_prefetch(segment_->ids + entry);
        }
        for (const int64_t start : met_[distance]) {
            int64_t left = room, next = start;
            for (bool more = true; more && left;) {
                require(next < segment_->codes);
                const uint32_t id = segment_->ids[next] & ~LAST;
                more = !(segment_->ids[next++] & LAST);
                require(id < segment_->codes);
                if (mask_ && !mask_[id]) continue;
                out_->push_back(uint64_t(distance) << 48 | uint64_t(segment_->first_id + id));
                --left;
            }
        }
        if (found() <= k_) return;
        std::nth_element(out_->begin() + before, out_->begin() + k_, out_->end());
        out_->resize(size_t(k_));
    }

    const Instructions* instructions_ = nullptr;
    const Segment* segment_ = nullptr;
    const bool* mask_ = nullptr;
    int64_t k_ = 0;
    std::vector<uint64_t>* out_ = nullptr;
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
    const uint32_t* starts_ = nullptr;        // where the ids of an entry start
    std::vector<int64_t> met_[MAX_BITS + 1];  // entries of codes, by distance
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
    thread_local BucketSearch own;
    BucketSearch& buckets = own;
    buckets.never_scan = index.never_scan;
    int64_t counts[MAX_BITS + 1] = {};
    parts.resize(index.segments.size() + 1);
    int radius = index.bits;
    for (size_t i = 0; i < index.segments.size(); ++i) {
        parts[i].clear();
        if (radius < 0) continue;
        buckets.run(instructions, index.segments[i], mask, query, k, radius, parts[i]);
        for (const uint64_t entry : parts[i]) ++counts[Selection::distance(entry)];
        int64_t sum = 0;
        for (int d = 0; d <= radius; ++d) {
            if ((sum += counts[d]) >= k) radius = d - 1;
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
        std::vector<std::vector<uint64_t>> parts;
        std::vector<Span> spans;
        for (int64_t q = task * PER_TASK; q < std::min((task + 1) * PER_TASK, queries.count); ++q) {
            search_parts(instructions, index, mask, queries[q], k, parts);
            spans.clear();
            int64_t found = 0;
            for (const auto& part : parts) {
                if (!part.empty()) spans.push_back({part.data(), part.data() + part.size()});
                found += int64_t(part.size());
            }
            require(found >= k);
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

// Fill the tables of a segment from what `sort_codes` gave, and mark the last id of each code.
inline void fill_tables(Rows codes, const uint64_t* words, const Segment& segment, int threads, uint32_t* directories,
                        uint8_t* entries, uint32_t* starts, uint32_t* ids) {
    const Entry kind = entry_for(segment.bits, segment.tables);
    std::vector<uint32_t> begin;  // where the ids of each distinct code start
    begin.reserve(size_t(segment.distinct));
    for (int64_t i = 0; i < segment.codes; ++i) {
        const bool same = i && (words ? words[i] == words[i - 1]
                                      : !std::memcmp(codes[ids[i]], codes[ids[i - 1]], size_t(codes.size)));
        if (same) continue;
        if (i) ids[i - 1] |= LAST;
        begin.push_back(uint32_t(i));
    }
    ids[segment.codes - 1] |= LAST;
    if (kind == Entry::none) {  // a direct table leads to ids
        for (int64_t i = 0; i < segment.codes; ++i) ++directories[words[i] + 1];
        for (int64_t v = 0; v < int64_t(1) << segment.bits; ++v) directories[v + 1] += directories[v];
        return;
    }
    parallel(threads, segment.tables, [&](int64_t t) {
        const Substring part(segment.bits, segment.tables, int(t));
        auto id_of = [&](uint32_t start) { return ids[start] & ~LAST; };
        auto value_of = [&](uint32_t start) {
            return words ? part.of(words[start]) : part.of(codes[id_of(start)], codes.size);
        };
        uint32_t* directory = directories + (segment.directory(int(t)) - segment.directories);
        for (const uint32_t start : begin) ++directory[value_of(start) + 1];
        for (int64_t v = 0; v < int64_t(1) << part.width; ++v) directory[v + 1] += directory[v];
        std::vector<uint32_t> next(directory, directory + (size_t(1) << part.width));
        for (const uint32_t start : begin) {
            const int64_t place = next[value_of(start)]++, entry = t * segment.stride + place;
            starts[t * segment.distinct + place] = start;
            if (kind == Entry::id) reinterpret_cast<uint32_t*>(entries)[entry] = id_of(start);
            if (kind == Entry::rest32) reinterpret_cast<uint32_t*>(entries)[entry] = uint32_t(part.rest(words[start]));
            if (kind == Entry::rest64) reinterpret_cast<uint64_t*>(entries)[entry] = part.rest(words[start]);
        }
    });
}

}  // namespace hyphash
