// Exact search and histograms by looking at every code.

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "instructions.hpp"
#include "selection.hpp"

namespace hyphash {

struct Rows {  // packed codes (or labels), one after the other
    const uint8_t* bytes;
    int64_t count;
    int size;  // bytes a row

    const uint8_t* operator[](int64_t i) const { return bytes + i * size; }
    // The first eight bytes of a row, filled up with zeros.
    uint64_t word(int64_t i) const {
        uint64_t word = 0;
        if (i + 8 < count) return load64((*this)[i]) & (size < 8 ? (uint64_t(1) << 8 * size) - 1 : ~uint64_t(0));
        std::memcpy(&word, (*this)[i], size_t(std::min(size, 8)));
        return word;
    }
    Rows part(int64_t start, int64_t end) const { return {(*this)[start], std::min(end, count) - start, size}; }
};

struct Range {
    int64_t start, end;
};

// Do f(0) … f(tasks − 1), several at a time. Threads are started for the call: 20 µs each, and nothing has to
// survive a fork. An exception of a task ends the work and is thrown here.
template <class Function>
void parallel(int threads, int64_t tasks, Function f) {
    std::atomic<int64_t> next{0};
    std::exception_ptr failure;
    std::mutex lock;
    auto work = [&] {
        try {
            for (int64_t task; (task = next++) < tasks;) f(task);
        } catch (...) {
            next = tasks;
            const std::lock_guard<std::mutex> guard(lock);
            failure = std::current_exception();
        }
    };
    std::vector<std::thread> others;
    try {
        for (int64_t t = 1; t < std::min<int64_t>(threads, tasks); ++t) others.emplace_back(work);
    } catch (const std::system_error&) {
        // No more threads to be had: those that run do all the work.
    }
    work();
    for (auto& thread : others) thread.join();
    if (failure) std::rethrow_exception(failure);
}

// A group of rows that may be read PAST its end, as the instructions do: a copy, if it is one of the last.
class Readable {
public:
    const uint8_t* group(const Rows& rows, int64_t start) {
        const int64_t bytes = (rows.count - start) * rows.size;
        if (bytes >= GROUP * rows.size + PAST) return rows[start];
        copy_.assign(size_t(GROUP * rows.size + PAST), 0);
        std::memcpy(copy_.data(), rows[start], size_t(std::min<int64_t>(bytes, GROUP * rows.size)));
        return copy_.data();
    }

private:
    std::vector<uint8_t> copy_;
};

// Rows as byte planes, up to BLOCK at a time.
class Planes {
public:
    Planes(const Instructions& instructions, Rows rows)
        : instructions_(instructions), rows_(rows), planes_(size_t(rows.size) * BLOCK) {}

    // Put the group of rows from `start` on at place `group`.
    void load_group(int64_t start, int64_t group) {
        instructions_.transpose(readable_.group(rows_, start), rows_.size, planes_.data() + group * GROUP);
    }

    void load(Range range) {
        for (int64_t i = range.start; i < range.end; i += GROUP) load_group(i, (i - range.start) / GROUP);
    }

    const uint8_t* data() const { return planes_.data(); }

private:
    const Instructions& instructions_;
    Rows rows_;
    std::vector<uint8_t> planes_;
    Readable readable_;
};

inline int exact_distance(const uint8_t* a, const uint8_t* b, int size) {
    int sum = 0;
    for (int j = 0; j < size; ++j) sum += __builtin_popcount(unsigned(a[j] ^ b[j]));
    return sum;
}

inline int steps_for(int64_t codes) { return int((codes + STEP - 1) / STEP); }
inline uint64_t first_bits(int64_t n) { return n >= 64 ? ~uint64_t(0) : (uint64_t(1) << n) - 1; }

// Queries against codes. Each code within a query's limit is shown to a sink, in the order of ids.
class Scan {
public:
    Scan(const Instructions& instructions, Rows queries, Rows database, const bool* mask)
        : instructions_(instructions), queries_(queries), database_(database), mask_(mask),
          by_rows_(queries.count < FEW && database.size <= 8), planes_(instructions, database) {}

    // sink(query) gives the query's limit, sink(query, distance, id) takes a hit, sink.pause(query) follows
    // after at most 64 hits of one query.
    template <class Sink>
    void run(Range range, Sink& sink) {
        for (int64_t at = range.start; at < range.end; at += BLOCK) {
            const Range block{at, std::min<int64_t>(at + BLOCK, range.end)};
            const int64_t groups = (block.end - block.start + GROUP - 1) / GROUP;
            if (!by_rows_) planes_.load(block);
            for (int64_t q = 0; q < queries_.count; ++q) {
                const int limit = sink(q);
                if (limit < 0) continue;
                if (by_rows_) {
                    match_rows(q, block, limit);
                } else {
                    instructions_.distances(planes_.data(), database_.size, queries_[q],
                                            steps_for(block.end - block.start), limit, counts_, hits_);
                }
                hits_[groups - 1] &= first_bits(block.end - block.start - (groups - 1) * GROUP);
                for (int64_t g = 0; g < groups; ++g) {
                    if (hits_[g]) show(q, g, block.start + g * GROUP, sink);
                }
            }
        }
    }

    // A radius that probably holds k codes of a range and not many more: judged by one block of codes from all
    // over it. Starting a search with a near limit saves most of the taking and dropping; a wrong guess costs a
    // second scan, never the answer.
    void guess_radius(Range range, int64_t k, int radius, std::vector<int>& guesses) {
        constexpr int64_t groups = BLOCK / GROUP;
        const int64_t apart = (range.end - range.start) / groups;
        const double expected = double(k) * BLOCK / double(range.end - range.start);
        guesses.assign(size_t(queries_.count), radius);
        if (apart < 4 * GROUP || expected > BLOCK / 4) return;
        for (int64_t g = 0; g < groups; ++g) planes_.load_group(range.start + g * apart, g);
        const int64_t enough = int64_t(expected + 4 * std::sqrt(expected)) + 2;
        for (int64_t q = 0; q < queries_.count; ++q) {
            instructions_.distances(planes_.data(), database_.size, queries_[q], BLOCK / STEP, -1, counts_, hits_);
            int64_t seen[256] = {};
            for (int64_t i = 0; i < BLOCK; ++i) {
                seen[counts_[i]] += !mask_ || mask_[range.start + i / GROUP * apart + i % GROUP];
            }
            int guess = 0;
            for (int64_t sum = seen[0]; sum < enough && guess < std::min(radius, 255);) sum += seen[++guess];
            if (guess < 255) guesses[size_t(q)] = guess;
        }
    }

private:
    static constexpr int64_t FEW = 6;  // below this number of queries turning rows into planes does not pay

    void match_rows(int64_t q, Range block, int limit) {
        const uint64_t query = queries_.word(q);
        const int64_t readable = (database_.count - block.start) * database_.size - PAST;
        const int64_t groups = (block.end - block.start + GROUP - 1) / GROUP;
        const int64_t whole = std::max<int64_t>(0, std::min(groups, readable / (GROUP * database_.size)));
        instructions_.match(database_[block.start], database_.size, query, whole * GROUP, limit, hits_);
        for (int64_t g = whole; g < groups; ++g) {
            const uint8_t* rows = readable_.group(database_, block.start + g * GROUP);
            instructions_.match(rows, database_.size, query, GROUP, limit, hits_ + g);
        }
    }

    template <class Sink>
    void show(int64_t q, int64_t group, int64_t first, Sink& sink) {
        for (uint64_t hits = hits_[group]; hits; hits &= hits - 1) {
            const int i = __builtin_ctzll(hits);
            if (mask_ && !mask_[first + i]) continue;
            int distance = counts_[group * GROUP + i];
            if (by_rows_ || distance == 255) {  // not counted yet, or saturated
                distance = exact_distance(queries_[q], database_[first + i], database_.size);
            }
            if (distance <= sink(q)) sink(q, distance, first + i);  // the limit may have sunk in this block
        }
        sink.pause(q);
    }

    const Instructions& instructions_;
    const Rows queries_, database_;
    const bool* const mask_;
    const bool by_rows_;
    Planes planes_;
    Readable readable_;
    alignas(64) uint8_t counts_[BLOCK] = {};
    uint64_t hits_[BLOCK / GROUP] = {};
};

// How queries × codes are cut into tasks: into groups of queries, and where these are few into ranges of codes.
struct Cut {
    int64_t queries, codes;
    int threads;  // below some tens of microseconds of work starting a thread costs more than it saves
    int64_t per_group, groups, per_range, ranges;

    Cut(int64_t queries, int64_t codes, int64_t bytes_per_query, int wanted)
        : queries(queries), codes(codes), threads(queries * codes > 200000 ? std::max(1, wanted) : 1) {
        const bool by_codes = threads > 1 && queries < 16 * threads;
        const int64_t in_cache = std::max<int64_t>(8, (int64_t(4) << 20) / std::max<int64_t>(1, bytes_per_query));
        const int64_t fair = by_codes ? queries : (queries + threads - 1) / threads;
        per_group = std::max<int64_t>(1, std::min<int64_t>({256, in_cache, fair}));
        groups = (queries + per_group - 1) / per_group;
        per_range = by_codes ? ((codes + threads - 1) / threads + BLOCK - 1) / BLOCK * BLOCK : codes;
        per_range = std::max<int64_t>(1, per_range);
        ranges = std::max<int64_t>(1, (codes + per_range - 1) / per_range);
    }

    Range group(int64_t g) const { return {g * per_group, std::min((g + 1) * per_group, queries)}; }
    Range range(int64_t r) const { return {r * per_range, std::min((r + 1) * per_range, codes)}; }
};

// The places of query q's results: k for each query, or from offsets[q] to offsets[q + 1].
struct Places {
    int64_t k;
    const int64_t* offsets;

    int64_t start(int64_t q) const { return offsets ? offsets[q] : q * k; }
    int64_t count(int64_t q) const { return offsets ? offsets[q + 1] - offsets[q] : k; }
};

struct SelectionSink {
    std::vector<Selection>& selections;
    const std::vector<int64_t>& which;  // selection of each query

    int operator()(int64_t q) { return selections[size_t(which[size_t(q)])].limit(); }
    void operator()(int64_t q, int d, int64_t id) { selections[size_t(which[size_t(q)])].take(d, id); }
    void pause(int64_t q) { selections[size_t(which[size_t(q)])].tighten(); }
};

// The nearest codes in `range` of some queries; places.count(first + q) of query q.
inline std::vector<Selection> select(const Instructions& instructions, Rows queries, Rows database,
                                     const bool* mask, int radius, Places places, int64_t first, Range range) {
    std::vector<Selection> selections(size_t(queries.count));
    std::vector<int64_t> which;
    std::vector<int> guesses;
    std::vector<uint8_t> again;  // queries whose guess was too small
    Scan scan(instructions, queries, database, mask);
    int64_t most = 0;
    for (int64_t q = 0; q < queries.count; ++q) most = std::max(most, places.count(first + q));
    scan.guess_radius(range, most, radius, guesses);
    for (int64_t q = 0; q < queries.count; ++q) {
        selections[size_t(q)].reset(places.count(first + q), range.end - range.start, guesses[size_t(q)]);
        which.push_back(q);
    }
    SelectionSink sink{selections, which};
    scan.run(range, sink);
    which.clear();
    for (int64_t q = 0; q < queries.count; ++q) {
        if (selections[size_t(q)].complete() || guesses[size_t(q)] == radius) continue;
        selections[size_t(q)].reset(places.count(first + q), range.end - range.start, radius);
        which.push_back(q);
        again.insert(again.end(), queries[q], queries[q] + queries.size);
    }
    const Rows these{again.data(), int64_t(which.size()), queries.size};
    if (these.count) Scan(instructions, these, database, mask).run(range, sink);
    return selections;
}

// The nearest codes of each query no farther than `radius`, as many as it has places.
inline void search(const Instructions& instructions, Rows queries, Rows database, const bool* mask, int radius,
                   Places places, int threads, int32_t* distances, int64_t* ids) {
    int64_t most = 0;
    for (int64_t q = 0; q < queries.count; ++q) most = std::max(most, places.count(q));
    const Cut cut(queries.count, database.count, 16 * most, threads);
    auto finish = [&](int64_t g, const std::vector<std::vector<Selection>>& parts) {
        const Range group = cut.group(g);
        for (int64_t q = group.start; q < group.end; ++q) {
            std::vector<Span> found;
            for (const auto& part : parts) {
                found.push_back({part[size_t(q - group.start)].begin(), part[size_t(q - group.start)].end()});
            }
            write_nearest(found, places.count(q), radius, distances + places.start(q), ids + places.start(q));
        }
    };
    auto work = [&](int64_t g, Range range) {
        const Range group = cut.group(g);
        return select(instructions, queries.part(group.start, group.end), database, mask, radius, places,
                      group.start, range);
    };
    if (cut.ranges == 1) {
        parallel(cut.threads, cut.groups, [&](int64_t g) { finish(g, {work(g, cut.range(0))}); });
        return;
    }
    for (int64_t g = 0; g < cut.groups; ++g) {
        std::vector<std::vector<Selection>> parts(size_t(cut.ranges));
        parallel(cut.threads, cut.ranges, [&](int64_t r) { parts[size_t(r)] = work(g, cut.range(r)); });
        finish(g, parts);
    }
}

struct CountSink {
    int radius;
    std::vector<int64_t> counts;

    int operator()(int64_t) { return radius; }
    void operator()(int64_t q, int, int64_t) { ++counts[size_t(q)]; }
    void pause(int64_t) {}
};

// How many codes lie within `radius` of each query.
inline void count_within(const Instructions& instructions, Rows queries, Rows database, const bool* mask, int radius,
                         int threads, int64_t* counts) {
    const Cut cut(queries.count, database.count, 0, threads);
    std::vector<std::atomic<int64_t>> sums(size_t(queries.count));
    parallel(cut.threads, cut.groups * cut.ranges, [&](int64_t task) {
        const Range group = cut.group(task / cut.ranges);
        CountSink sink{radius, std::vector<int64_t>(size_t(group.end - group.start), 0)};
        const Rows some = queries.part(group.start, group.end);
        Scan(instructions, some, database, mask).run(cut.range(task % cut.ranges), sink);
        for (int64_t q = group.start; q < group.end; ++q) sums[size_t(q)] += sink.counts[size_t(q - group.start)];
    });
    for (int64_t q = 0; q < queries.count; ++q) counts[q] = sums[size_t(q)];
}

// ---- histograms: how many codes have which distance and gain --------------------------------------------------

struct Labelled {
    Rows codes, labels;
};

struct HistogramOutput {  // each (queries, bits + 1)
    int64_t *count, *relevant, *gain;
    double* exp_gain;
};

// Add the codes of one query's table (distance × gain) up to what the measures want.
inline void sum_gains(const std::vector<uint32_t>& table, size_t gains, int bits, int64_t q, HistogramOutput out) {
    for (int d = 0; d <= bits; ++d) {
        const int64_t place = q * (bits + 1) + d;
        out.count[place] = table[size_t(d) * gains];
        out.relevant[place] = out.gain[place] = 0;
        out.exp_gain[place] = 0;
        for (size_t g = 1; g < gains; ++g) {
            const int64_t n = table[size_t(d) * gains + g];
            out.count[place] += n;
            out.relevant[place] += n;
            out.gain[place] += n * int64_t(g);
            out.exp_gain[place] += double(n) * (std::exp2(double(g)) - 1);
        }
    }
}

inline void histogram_group(const Instructions& instructions, Labelled queries, Labelled database, Range group,
                            int bits, HistogramOutput out) {
    Planes codes(instructions, database.codes), labels(instructions, database.labels);
    alignas(64) uint8_t distances[BLOCK], gains[BLOCK];
    uint64_t unused[BLOCK / GROUP];
    std::vector<std::vector<uint32_t>> tables;
    std::vector<size_t> widths;
    for (int64_t q = group.start; q < group.end; ++q) {
        size_t wanted = 0;
        for (int j = 0; j < queries.labels.size; ++j) wanted += size_t(__builtin_popcount(queries.labels[q][j]));
        widths.push_back(wanted + 1);
        tables.emplace_back(size_t(bits + 1) * (wanted + 1), 0);
    }
    for (int64_t at = 0; at < database.codes.count; at += BLOCK) {
        const Range block{at, std::min<int64_t>(at + BLOCK, database.codes.count)};
        const int64_t n = block.end - block.start;
        codes.load(block);
        labels.load(block);
        for (int64_t q = group.start; q < group.end; ++q) {
            instructions.distances(codes.data(), database.codes.size, queries.codes[q], steps_for(n), -1, distances,
                                   unused);
            instructions.gains(labels.data(), database.labels.size, queries.labels[q], steps_for(n), -1, gains, unused);
            uint32_t* table = tables[size_t(q - group.start)].data();
            const size_t width = widths[size_t(q - group.start)];
            for (int64_t i = 0; i < n; ++i) {
                size_t d = distances[i];
                if (d == 255) d = size_t(exact_distance(queries.codes[q], database.codes[at + i], database.codes.size));
                ++table[d * width + gains[i]];
            }
        }
    }
    for (int64_t q = group.start; q < group.end; ++q) {
        sum_gains(tables[size_t(q - group.start)], widths[size_t(q - group.start)], bits, q, out);
    }
}

// No query may have more than 255 labels.
inline void histogram(const Instructions& instructions, Labelled queries, Labelled database, int bits, int threads,
                      HistogramOutput out) {
    const int64_t fair = (queries.codes.count + threads - 1) / std::max(1, threads);
    const int64_t per_group = std::max<int64_t>(1, std::min<int64_t>(64, fair));
    const int64_t groups = (queries.codes.count + per_group - 1) / per_group;
    parallel(threads, groups, [&](int64_t g) {
        const Range group{g * per_group, std::min((g + 1) * per_group, queries.codes.count)};
        histogram_group(instructions, queries, database, group, bits, out);
    });
}

// ---- sums of table entries: asymmetric search and product quantisers ------------------------------------------

using Scored = std::pair<float, int64_t>;  // ordered by score, then id

inline void keep_least(std::vector<Scored>& scored, int64_t k) {
    if (int64_t(scored.size()) <= k) return;
    std::nth_element(scored.begin(), scored.begin() + k, scored.end());
    scored.resize(size_t(k));
}

// The k codes of a range with the least scores; in any order.
inline std::vector<Scored> select_scores(const float* table, Rows database, const bool* mask, int64_t k, Range range) {
    std::vector<Scored> best;
    const size_t full = size_t(2 * k + 1024);
    best.reserve(full);
    bool cut = false;
    float limit = 0;
    for (int64_t i = range.start; i < range.end; ++i) {
        const uint8_t* code = database[i];
        float score = table[code[0]];
        for (int j = 1; j < database.size; ++j) score += table[j * 256 + code[j]];
        if ((cut && score >= limit) || (mask && !mask[i])) continue;
        best.emplace_back(score, i);
        if (best.size() < full) continue;
        keep_least(best, k);
        limit = std::max_element(best.begin(), best.end())->first;  // a later id with an equal score comes too late
        cut = true;
    }
    keep_least(best, k);
    return best;
}

// tables: (queries, bytes, 256)
inline void search_tables(const float* tables, int64_t queries, Rows database, const bool* mask, int64_t k, int threads,
                          float* scores, int64_t* ids) {
    const int64_t ranges = queries < threads && database.count > 20000 ? threads : 1;
    const int64_t per_range = (database.count + ranges - 1) / ranges;
    std::vector<std::vector<Scored>> parts(size_t(queries * ranges));
    parallel(threads, queries * ranges, [&](int64_t task) {
        const int64_t start = std::min(task % ranges * per_range, database.count);
        const Range range{start, std::min(start + per_range, database.count)};
        auto& part = parts[size_t(task)];
        part = select_scores(tables + task / ranges * database.size * 256, database, mask, k, range);
        if (ranges > 1) return;
        std::sort(part.begin(), part.end());
        for (size_t i = 0; i < part.size(); ++i) {
            std::tie(scores[task * k + int64_t(i)], ids[task * k + int64_t(i)]) = part[i];
        }
        std::vector<Scored>().swap(part);
    });
    for (int64_t q = 0; ranges > 1 && q < queries; ++q) {
        std::vector<Scored> all;
        for (int64_t r = 0; r < ranges; ++r) {
            const auto& part = parts[size_t(q * ranges + r)];
            all.insert(all.end(), part.begin(), part.end());
        }
        std::sort(all.begin(), all.end());
        for (int64_t i = 0; i < k; ++i) std::tie(scores[q * k + i], ids[q * k + i]) = all[size_t(i)];
    }
}

// ---- planes of scores: a number for each photo and label, of four bits (two photos a byte) or of eight --------

typedef float TwoFloats __attribute__((vector_size(8)));  // what a byte adds to the sums of its two photos

struct Plane {
    const uint8_t* numbers;
    const float* table;              // what each number adds
    std::vector<TwoFloats> by_byte;  // of a plane of four bits

    Plane(const uint8_t* numbers, const float* table, bool four_bits) : numbers(numbers), table(table) {
        for (int byte = 0; four_bits && byte < 256; ++byte) {
            by_byte.push_back(TwoFloats{table[byte & 15], table[byte >> 4]});
        }
    }

    // Add what n photos from an even row on have; of an odd n, one more than that.
    void add(int64_t start, int64_t n, float* sums) const {
        if (by_byte.empty()) {
            for (int64_t i = 0; i < n; ++i) sums[i] += table[numbers[start + i]];
            return;
        }
        const uint8_t* bytes = numbers + start / 2;
        const TwoFloats* additions = by_byte.data();
        for (int64_t j = 0; j < (n + 1) / 2; ++j) {
            TwoFloats two;
            std::memcpy(&two, sums + 2 * j, sizeof two);
            two += additions[bytes[j]];
            std::memcpy(sums + 2 * j, &two, sizeof two);
        }
    }
};

// What a photo costs that has one of some labels: −log(1 − e^none), where none = Σ log(1 − p) of these labels.
class AnyOf {
public:
    AnyOf() {
        for (int cell = 0; cell < CELLS; ++cell) bounds_[cell] = {cost(float(-cell - 2) / CUT), cost(float(1 - cell) / CUT)};
        bounds_[CELLS - 1].least = 0;
    }
    static float cost(float none) { return none < 0 ? float(-std::log(-std::expm1(double(none)))) : INFINITY; }

    struct Bounds {
        float least, most;
    };
    // Between what the cost lies, in no time.
    Bounds bounds(float none) const { return bounds_[int(std::min(-none * CUT, float(CELLS - 1)))]; }

private:
    static constexpr int CELLS = 1024, CUT = 64;
    Bounds bounds_[CELLS];
};

// What any of two labels costs, whose planes have four bits: all there can be are worked out beforehand.
class AnyOfTwo {
public:
    AnyOfTwo(const Plane& one, const Plane& other) : one_(one.numbers), other_(other.numbers) {
        for (int both = 0; both < 256; ++both) costs_[both] = AnyOf::cost(one.table[both & 15] + other.table[both >> 4]);
    }
    // As Plane::add.
    void add(int64_t start, int64_t n, float* sums) const {
        const uint8_t *one = one_ + start / 2, *other = other_ + start / 2;
        for (int64_t j = 0; j < (n + 1) / 2; ++j) {
            sums[2 * j] += costs_[(one[j] & 15) | (other[j] & 15) << 4];
            sums[2 * j + 1] += costs_[one[j] >> 4 | (other[j] & 240)];
        }
    }

private:
    const uint8_t *one_, *other_;
    float costs_[256];
};

struct ScorePlanes {
    std::vector<Plane> every, some;  // of labels whose costs add up, and of those of which one is enough
    std::vector<AnyOfTwo> of_two;    // these, if they are two of four bits
    AnyOf any_of;
    Rows codes;           // of no bytes where codes do not matter
    const float* tables;  // of their bytes
    const bool* mask;
    int64_t count;

    void prepare() {
        if (some.size() == 2 && !some[0].by_byte.empty() && !some[1].by_byte.empty()) of_two.emplace_back(some[0], some[1]);
    }

    // What up to BLOCK photos from an even row on cost by their labels, and with their codes; infinite where the mask
    // leaves one out. A sum beyond the limit need not be right, only beyond it, and on the right side of the border.
    void sum(Range block, float border, float limit, float* labels, float* sums) const {
        const int64_t n = block.end - block.start;
        std::fill_n(labels, n, 0.0f);
        for (const Plane& plane : every) plane.add(block.start, n, labels);
        for (const AnyOfTwo& two : of_two) two.add(block.start, n, labels);
        for (int64_t i = 0; mask && i < n; ++i) labels[i] = mask[block.start + i] ? labels[i] : INFINITY;
        std::fill_n(sums, n, 0.0f);
        for (int64_t i = 0; codes.size && i < n; ++i) {
            for (int j = 0; j < codes.size; ++j) sums[i] += tables[j * 256 + codes[block.start + i][j]];
        }
        if (!some.empty() && of_two.empty()) {
            alignas(64) float none[BLOCK] = {};
            for (const Plane& plane : some) plane.add(block.start, n, none);
            for (int64_t i = 0; i < n; ++i) {
                const AnyOf::Bounds any = any_of.bounds(none[i]);
                const bool unclear = (labels[i] + any.least <= border) != (labels[i] + any.most <= border);
                const bool exact = unclear || labels[i] + any.least + sums[i] < limit || !(none[i] < 0);
                labels[i] += exact ? AnyOf::cost(none[i]) : any.least;
            }
        }
        for (int64_t i = 0; i < n; ++i) sums[i] += labels[i];
    }
};

struct PlaneHits {
    std::vector<Scored> best;  // in any order
    int64_t within = 0, finite = 0;
};

// The k photos of a range with the least sums; how many cost at most `border` by their labels, and how many are found.
inline PlaneHits select_sums(const ScorePlanes& scores, int64_t k, float border, Range range) {
    PlaneHits found;
    const size_t full = size_t(2 * k + 1024);
    float limit = k ? INFINITY : -INFINITY;
    alignas(64) float labels[BLOCK], sums[BLOCK];
    for (int64_t at = range.start; at < range.end; at += BLOCK) {
        const Range block{at, std::min<int64_t>(at + BLOCK, range.end)};
        scores.sum(block, border, limit, labels, sums);
        for (int64_t i = block.end - block.start; i < BLOCK; ++i) labels[i] = sums[i] = INFINITY;
        int within = 0, finite = 0;
        for (int i = 0; i < BLOCK; ++i) within += labels[i] <= border;
        for (int i = 0; i < BLOCK; ++i) finite += labels[i] < INFINITY;
        found.within += within;
        found.finite += finite;
        for (int group = 0; group < BLOCK; group += GROUP) {
            int hits = 0;
            for (int i = group; i < group + GROUP; ++i) hits |= sums[i] < limit;
            for (int i = group; hits && i < group + GROUP; ++i) {
                if (sums[i] < limit) found.best.emplace_back(sums[i], at + i);
            }
        }
        if (found.best.size() < full) continue;
        keep_least(found.best, k);
        limit = std::max_element(found.best.begin(), found.best.end())->first;  // an equal sum later comes too late
    }
    keep_least(found.best, k);
    return found;
}

// The k least sums by (sum, row), as many as are finite; counts: costs of at most `border` (a finite one), and finite ones.
inline void search_planes(const ScorePlanes& scores, int64_t k, float border, int threads, float* sums, int64_t* ids,
                          int64_t* counts) {
    const Cut cut(1, scores.count, 0, threads);
    border = std::min(border, std::numeric_limits<float>::max());  // an infinite sum is within none
    std::vector<PlaneHits> parts(size_t(cut.ranges));
    parallel(cut.threads, cut.ranges, [&](int64_t r) {
        parts[size_t(r)] = select_sums(scores, k, border, cut.range(r));
    });
    std::vector<Scored> all;
    counts[0] = counts[1] = 0;
    for (const PlaneHits& part : parts) {
        all.insert(all.end(), part.best.begin(), part.best.end());
        counts[0] += part.within;
        counts[1] += part.finite;
    }
    keep_least(all, k);
    std::sort(all.begin(), all.end());
    for (size_t i = 0; i < all.size(); ++i) std::tie(sums[i], ids[i]) = all[i];
}

}  // namespace hyphash
