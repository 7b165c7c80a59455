// Random problems for the kernel, each compared with a naive twin; to be compiled with sanitizers.
// Usage: fuzz SECONDS [SEED]. Buffers are exactly as long as they must be, so that any step beside them is seen.
// With -DHYPHASH_LIBFUZZER and clang's -fsanitize=fuzzer the problems are guided by the paths they take.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "buckets.hpp"

using namespace hyphash;

namespace {

// Numbers that a problem is made of: two bytes each of a guided input, then random ones.
struct Source {
    const uint8_t* input = nullptr;
    size_t left = 0;
    std::mt19937_64 random{};

    uint64_t operator()() {
        if (left < 2) return random();
        left -= 2;
        return uint64_t(input[left]) << 8 | input[left + 1];
    }
};

Source generator;

int64_t pick(int64_t least, int64_t most) { return least + int64_t(generator() % uint64_t(most - least + 1)); }

void require(bool holds, const char* what) {
    if (holds) return;
    std::printf("wrong: %s\n", what);
    std::abort();
}

// Bytes on the heap without a spare one.
template <class T>
struct Exact {
    explicit Exact(int64_t n) : data(new T[size_t(n)]()), count(n) {}
    std::unique_ptr<T[]> data;
    int64_t count;
};

struct Problem {
    int bits = int(pick(1, 4) == 1 ? pick(1, 256) : pick(1, 64));
    int size = (bits + 7) / 8;
    int64_t codes = pick(1, 3) == 1 ? pick(0, 70) : pick(0, 3000), queries = pick(0, 8);
    Exact<uint8_t> pool{pick(1, 40) * size}, database{codes * size}, wanted{queries * size};
    Exact<bool> mask{codes};
    bool masked = pick(0, 1);

    Problem() {
        for (int64_t i = 0; i < pool.count; ++i) pool.data[size_t(i)] = uint8_t(generator());
        draw(database);
        draw(wanted);
        const uint64_t share = generator() % 101;
        for (int64_t i = 0; i < codes; ++i) mask.data[size_t(i)] = generator() % 100 < share;
        for (int64_t q = 0; q < queries; ++q) rankings.push_back(rank(q));
    }

    // Codes near those of the pool: many ties and duplicates.
    void draw(Exact<uint8_t>& codes_) {
        for (int64_t i = 0; i < codes_.count / size; ++i) {
            const int64_t from = pick(0, pool.count / size - 1);
            for (int j = 0; j < size; ++j) {
                uint8_t byte = pool.data[size_t(from * size + j)];
                if (pick(0, 9) == 0) byte = uint8_t(byte ^ 1 << pick(0, 7));
                if (j == size - 1 && bits % 8) byte = uint8_t(byte & ((1 << bits % 8) - 1));
                codes_.data[size_t(i * size + j)] = byte;
            }
        }
    }

    Rows rows() const { return {database.data.get(), codes, size}; }
    Rows query_rows() const { return {wanted.data.get(), queries, size}; }
    const bool* allowed() const { return masked ? mask.data.get() : nullptr; }

    // (distance, id) of all allowed codes, in order.
    std::vector<std::pair<int, int64_t>> rank(int64_t q) const {
        std::vector<std::pair<int, int64_t>> all;
        for (int64_t i = 0; i < codes; ++i) {
            if (!masked || mask.data[size_t(i)]) all.emplace_back(exact_distance(query_rows()[q], rows()[i], size), i);
        }
        std::sort(all.begin(), all.end());
        return all;
    }

    int64_t count_allowed() const { return queries ? int64_t(rankings[0].size()) : 0; }

    std::vector<std::vector<std::pair<int, int64_t>>> rankings;
};

void check_search(const Instructions& instructions, const Problem& p) {
    const int threads = int(pick(1, 3));
    const int64_t k = std::min<int64_t>(pick(1, 3) == 1 ? pick(1, 3000) : pick(1, 20),
                                        p.count_allowed());
    Exact<int32_t> distances(p.queries * k);
    Exact<int64_t> ids(p.queries * k);
    search(instructions, p.query_rows(), p.rows(), p.allowed(), p.bits, {k, nullptr}, threads, distances.data.get(),
           ids.data.get());
    for (int64_t q = 0; q < p.queries; ++q) {
        const auto& expected = p.rankings[size_t(q)];
        for (int64_t i = 0; i < k; ++i) {
            const size_t place = size_t(q * k + i);
            require(expected[size_t(i)] == std::make_pair(int(distances.data[place]), ids.data[place]), "search");
        }
    }
}

void check_within(const Instructions& instructions, const Problem& p) {
    const int threads = int(pick(1, 3)), radius = int(pick(0, p.bits));
    Exact<int64_t> counts(p.queries), offsets(p.queries + 1);
    count_within(instructions, p.query_rows(), p.rows(), p.allowed(), radius, threads, counts.data.get());
    for (size_t q = 0; q < size_t(p.queries); ++q) offsets.data[q + 1] = offsets.data[q] + counts.data[q];
    const int64_t total = offsets.data[size_t(p.queries)];
    Exact<int32_t> distances(total);
    Exact<int64_t> ids(total);
    search(instructions, p.query_rows(), p.rows(), p.allowed(), radius, {0, offsets.data.get()}, threads,
           distances.data.get(), ids.data.get());
    for (int64_t q = 0; q < p.queries; ++q) {
        const auto& expected = p.rankings[size_t(q)];
        const auto beyond = std::partition_point(expected.begin(), expected.end(),
                                                 [&](const auto& pair) { return pair.first <= radius; });
        require(beyond - expected.begin() == counts.data[size_t(q)], "count_within");
        for (size_t i = 0; i < size_t(counts.data[size_t(q)]); ++i) {
            const size_t place = size_t(offsets.data[size_t(q)]) + i;
            require(expected[i] == std::make_pair(int(distances.data[place]), ids.data[place]), "within");
        }
    }
}

void check_histogram(const Instructions& instructions, const Problem& p) {
    const int label_bytes = int(pick(1, 4));
    Exact<uint8_t> query_labels(p.queries * label_bytes), labels(p.codes * label_bytes);
    for (int64_t i = 0; i < query_labels.count; ++i) query_labels.data[size_t(i)] = uint8_t(generator() & generator());
    for (int64_t i = 0; i < labels.count; ++i) labels.data[size_t(i)] = uint8_t(generator() & generator());
    const int64_t cells = p.queries * (p.bits + 1);
    Exact<int64_t> count(cells), relevant(cells), gain(cells), naive(cells), naive_gain(cells);
    Exact<double> exp_gain(cells);
    histogram(instructions, {p.query_rows(), {query_labels.data.get(), p.queries, label_bytes}},
              {p.rows(), {labels.data.get(), p.codes, label_bytes}}, p.bits, int(pick(1, 3)),
              {count.data.get(), relevant.data.get(), gain.data.get(), exp_gain.data.get()});
    for (int64_t q = 0; q < p.queries; ++q) {
        for (int64_t i = 0; i < p.codes; ++i) {
            const size_t cell = size_t(q * (p.bits + 1) + exact_distance(p.query_rows()[q], p.rows()[i], p.size));
            ++naive.data[cell];
            for (int j = 0; j < label_bytes; ++j) {
                const uint8_t wanted = query_labels.data[size_t(q * label_bytes + j)];
                naive_gain.data[cell] += __builtin_popcount(wanted & labels.data[size_t(i * label_bytes + j)]);
            }
        }
    }
    for (size_t cell = 0; cell < size_t(cells); ++cell) {
        require(count.data[cell] == naive.data[cell] && gain.data[cell] == naive_gain.data[cell], "histogram");
    }
}

void check_tables(const Problem& p) {
    Exact<float> tables(p.queries * p.size * 256);
    for (int64_t i = 0; i < tables.count; ++i) tables.data[size_t(i)] = float(pick(-9, 9));
    const int64_t k = std::min<int64_t>(pick(1, 100), p.count_allowed());
    if (!k) return;
    Exact<float> scores(p.queries * k);
    Exact<int64_t> ids(p.queries * k);
    search_tables(tables.data.get(), p.queries, p.rows(), p.allowed(), k, int(pick(1, 3)), scores.data.get(),
                  ids.data.get());
    for (int64_t q = 0; q < p.queries; ++q) {
        std::vector<Scored> expected;
        for (int64_t i = 0; i < p.codes; ++i) {
            float score = 0;
            for (int j = 0; j < p.size; ++j) score += tables.data[size_t((q * p.size + j) * 256 + p.rows()[i][j])];
            if (!p.masked || p.mask.data[size_t(i)]) expected.emplace_back(score, i);
        }
        std::sort(expected.begin(), expected.end());
        for (int64_t i = 0; i < k; ++i) {
            const size_t place = size_t(q * k + i);
            require(expected[size_t(i)] == Scored(scores.data[place], ids.data[place]), "search_tables");
        }
    }
}

void check_planes(const Problem& p) {
    ScorePlanes scores{};
    std::vector<std::unique_ptr<Exact<uint8_t>>> planes;
    std::vector<std::vector<float>> tables;
    scores.count = p.codes;
    for (int64_t l = pick(1, 4); l; --l) {
        planes.push_back(std::make_unique<Exact<uint8_t>>((p.codes + 1) / 2));
        for (int64_t i = 0; i < planes.back()->count; ++i) planes.back()->data[size_t(i)] = uint8_t(generator());
        tables.emplace_back();
        for (int i = 0; i < 16; ++i) tables.back().push_back(pick(0, 9) ? float(pick(-9, 9)) : INFINITY);
        scores.every.emplace_back(planes.back()->data.get(), tables.back().data(), true);
    }
    scores.mask = p.allowed();
    std::vector<Scored> expected;
    const float border = float(pick(-9, 9));
    int64_t within = 0;
    for (int64_t i = 0; i < p.codes; ++i) {
        float sum = 0;
        for (size_t l = 0; l < tables.size(); ++l) sum += tables[l][planes[l]->data[size_t(i / 2)] >> i % 2 * 4 & 15];
        if (sum == INFINITY || (p.masked && !p.mask.data[size_t(i)])) continue;
        expected.emplace_back(sum, i);
        within += sum <= border;
    }
    const int64_t k = std::min<int64_t>(pick(0, 100), p.codes);
    Exact<float> sums(k);
    Exact<int64_t> ids(k), counts(2);
    search_planes(scores, k, border, int(pick(1, 3)), sums.data.get(), ids.data.get(), counts.data.get());
    require(counts.data[0] == within && counts.data[1] == int64_t(expected.size()), "counts of search_planes");
    std::sort(expected.begin(), expected.end());
    for (size_t i = 0; i < std::min(size_t(k), expected.size()); ++i) {
        require(expected[i] == Scored(sums.data[i], ids.data[i]), "search_planes");
    }
}

// One segment with memory of its own.
struct Built {
    Segment segment{};
    std::vector<uint32_t> ids, directories, starts;
    std::vector<uint64_t> entries;

    Built(Rows codes, int bits, int64_t first_id) {
        constexpr int64_t SPARE = 128;  // as in segments.py
        segment.bits = bits;
        segment.tables = bits <= 16 || (bits <= 20 && pick(0, 1)) ? 1 : std::max(2, (bits + 8) / 16);
        segment.first_id = first_id;
        segment.codes = codes.count;
        std::vector<uint64_t> words(size_t(bits <= 64 ? codes.count : 0));
        ids.resize(size_t(codes.count));
        segment.distinct = sort_codes(codes, bits, segment.tables, int(pick(1, 3)), ids.data(),
                                      bits <= 64 ? words.data() : nullptr);
        segment.stride = segment.distinct + SPARE;
        int64_t length = 0;
        for (int t = 0; t < segment.tables; ++t) length += (int64_t(1) << Substring(bits, segment.tables, t).width) + 1;
        directories.resize(size_t(length));
        starts.resize(size_t(segment.distinct * segment.tables));
        const int64_t bytes = segment.stride * segment.tables * entry_bytes(entry_for(bits, segment.tables));
        entries.resize(size_t((bytes + 7) / 8));
        segment.ids = ids.data();
        segment.directories = directories.data();
        auto* room = reinterpret_cast<uint8_t*>(entries.data());
        fill_tables(codes, bits <= 64 ? words.data() : nullptr, segment, 1, directories.data(), room, starts.data(),
                    ids.data());
        segment.entries = room;
        segment.starts = starts.data();
        segment.rows = codes.bytes;
    }
};

void check_index(const Instructions& instructions, const Problem& p) {
    std::vector<std::unique_ptr<Built>> built;
    IndexView index{p.bits, {}, {}, 0};
    int64_t at = 0;
    for (int64_t part = pick(0, 3); part && at < p.codes; --part) {
        const int64_t end = pick(at + 1, p.codes);
        built.push_back(std::make_unique<Built>(p.rows().part(at, end), p.bits, at));
        index.segments.push_back(built.back()->segment);
        at = end;
    }
    index.tail = p.rows().part(at, p.codes);
    index.tail_id = at;
    const int64_t k = std::min<int64_t>(pick(1, 3) == 1 ? pick(1, 3000) : pick(1, 20),
                                        p.count_allowed());
    index.never_scan = k <= 20 && (!p.masked || pick(0, 9) == 0);  // with a mask it may take all the buckets
    Exact<int32_t> distances(p.queries * k);
    Exact<int64_t> ids(p.queries * k);
    if (k) search_index(instructions, index, p.query_rows(), p.allowed(), k, 2, distances.data.get(), ids.data.get());
    for (int64_t q = 0; q < p.queries; ++q) {
        const auto& expected = p.rankings[size_t(q)];
        for (int64_t i = 0; i < k; ++i) {
            const size_t place = size_t(q * k + i);
            require(expected[size_t(i)] == std::make_pair(int(distances.data[place]), ids.data[place]), "index");
        }
    }
}

void solve_one() {
    const Problem problem;
    const auto all = available();
    const Instructions& instructions = *all[size_t(pick(0, int64_t(all.size()) - 1))];
    check_search(instructions, problem);
    check_within(instructions, problem);
    check_histogram(instructions, problem);
    check_planes(problem);
    check_tables(problem);
    check_index(instructions, problem);
}

}  // namespace

#if defined(HYPHASH_LIBFUZZER)
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
    generator = Source{input, size};
    solve_one();
    return 0;
}
#else
int main(int count, char** values) {
    const double seconds = count > 1 ? std::atof(values[1]) : 5;
    generator.random.seed(count > 2 ? std::strtoull(values[2], nullptr, 10) : std::random_device()());
    const auto start = std::chrono::steady_clock::now();
    int64_t problems = 0;
    do {
        solve_one();
        ++problems;
    } while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds);
    std::printf("%lld problems solved\n", (long long)problems);
}
#endif
