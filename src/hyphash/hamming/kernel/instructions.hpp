// What differs from one processor to another: turning codes into byte planes, and counting bits in them.
//
// A block of codes is held as byte planes: byte j of code i lies at planes[j * BLOCK + i]. In this layout any
// length of code is a number of planes, one vector holds 64 distances as bytes, and a comparison with the limit
// gives one bit a code. The rows of a database are turned into planes on the way, block by block, in cache.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)  // GCC warns of its own undefined vectors
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace hyphash {

constexpr int GROUP = 64;         // codes whose hits fill one 64-bit word
constexpr int STEP = 4 * GROUP;   // codes that the counting loops take at a time: four vectors of 64 bytes
constexpr int PAST = 64;          // bytes past the end of a group of rows that may be read
constexpr int BLOCK = 1024;       // codes in the planes: at 8 bytes a code half of a first-level cache

// One group of 64 rows of `size` bytes each → planes.
using Transpose = void (*)(const uint8_t* rows, int size, uint8_t* planes);

// For `steps` · STEP codes: the number of bits in plane ^ query (plane & query for labels), saturated at 255,
// and as bits which of these numbers are at most `limit`.
using Count = void (*)(const uint8_t* planes, int size, const uint8_t* query, int steps, int limit,
                       uint8_t* counts, uint64_t* hits);

// For few queries turning the rows does not pay. For `count` rows of at most 8 bytes: which of them are at most
// `limit` bits away. Bits of the last word that stand for no row may have any value.
using Match = void (*)(const uint8_t* rows, int size, uint64_t query, int64_t count, int limit, uint64_t* hits);

struct Instructions {
    const char* name;
    Transpose transpose;
    Count distances;
    Count gains;
    Match match;
};

inline uint64_t load64(const uint8_t* bytes) {
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    return word;
}

inline uint32_t load32(const uint8_t* bytes) {
    uint32_t word;
    std::memcpy(&word, bytes, 4);
    return word;
}

// ---- any processor: vectors as the compiler's generic extension (SSE2 on x86-64, NEON on ARM) ----------------

namespace portable {

typedef uint8_t Bytes __attribute__((vector_size(64)));
typedef uint64_t Words __attribute__((vector_size(64)));

// Lane l of rows[r] starts as eight bytes of code 8l + r. Swapping ever smaller squares turns each lane's 8 × 8
// bytes around, so that lane l of rows[j] ends as byte j of the codes 8l … 8l + 7.
inline void transpose(const uint8_t* codes, int size, uint8_t* planes) {
    for (int first = 0; first < size; first += 8) {
        uint64_t lanes[8][8];
        for (int i = 0; i < GROUP; ++i) lanes[i % 8][i / 8] = load64(codes + i * size + first);
        Words rows[8];
        std::memcpy(rows, lanes, sizeof rows);
        auto swap_squares = [&rows](int apart, int shift, uint64_t mask) {
            for (int r = 0; r < 8; ++r) {
                if (r & apart) continue;
                const Words moved = ((rows[r] >> shift) ^ rows[r + apart]) & mask;
                rows[r + apart] ^= moved;
                rows[r] ^= moved << shift;
            }
        };
        swap_squares(4, 32, 0x00000000ffffffff);
        swap_squares(2, 16, 0x0000ffff0000ffff);
        swap_squares(1, 8, 0x00ff00ff00ff00ff);
        for (int j = first; j < std::min(size, first + 8); ++j) std::memcpy(planes + j * BLOCK, &rows[j - first], 64);
    }
}

// The number of bits in each byte.
inline Bytes count_bits(Bytes bytes) {
#if defined(__ARM_NEON)
    uint8x16_t parts[4];
    std::memcpy(parts, &bytes, 64);
    for (auto& part : parts) part = vcntq_u8(part);
    std::memcpy(&bytes, parts, 64);
    return bytes;
#else
    Words x = (Words)bytes;
    x = x - ((x >> 1) & 0x5555555555555555);
    x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333);
    return (Bytes)((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0f);
#endif
}

inline uint64_t at_most(Bytes sums, int limit) {
    const Words met = (Words)(sums <= Bytes{} + uint8_t(std::min(limit, 255)));
    uint64_t any = 0, hits = 0;
    for (int l = 0; l < 8; ++l) any |= met[l];
    if (!any) return 0;
    for (int l = 0; l < 8; ++l) {  // gather the lowest bits of eight bytes into one byte
        hits |= ((met[l] & 0x0101010101010101) * 0x0102040810204080 >> 56) << (8 * l);
    }
    return hits;
}

template <bool labels>
void count(const uint8_t* planes, int size, const uint8_t* query, int steps, int limit, uint8_t* counts,
           uint64_t* hits) {
    for (int group = 0; group < steps * (STEP / GROUP); ++group, planes += GROUP, counts += GROUP) {
        Bytes sums = {};
        for (int j = 0; j < size; ++j) {
            Bytes plane;
            std::memcpy(&plane, planes + j * BLOCK, 64);
            const Bytes more = count_bits(labels ? plane & query[j] : plane ^ query[j]);
            sums += more;
            if (j >= 31) sums |= (Bytes)(sums < more);  // 31 bytes cannot overflow a sum, 32 can
        }
        std::memcpy(counts, &sums, 64);
        hits[group] = at_most(sums, limit);
    }
}

#if defined(__ARM_NEON)
constexpr const char* name = "neon";
#else
constexpr const char* name = "portable";
#endif
inline void match(const uint8_t* rows, int size, uint64_t query, int64_t count, int limit, uint64_t* hits) {
    const uint64_t used = ~uint64_t(0) >> (64 - 8 * size);
    for (; count > 0; count -= GROUP) {
        uint64_t met = 0;
        for (int i = 0; i < std::min<int64_t>(GROUP, count); ++i, rows += size) {
            met |= uint64_t(__builtin_popcountll((load64(rows) ^ query) & used) <= limit) << i;
        }
        *hits++ = met;
    }
}

constexpr Instructions instructions = {name, transpose, count<false>, count<true>, match};

}  // namespace portable

#if defined(__x86_64__)

// ---- AVX2: 32 codes at a time; the bits of a nibble are looked up in a register ------------------------------

namespace avx2 {

#define HYPHASH_AVX2 __attribute__((target("avx2,popcnt")))

HYPHASH_AVX2 inline __m256i bits_of_nibbles() {
    return _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,
                            0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
}

HYPHASH_AVX2 inline void transpose(const uint8_t* codes, int size, uint8_t* planes) {
    for (int first = 0; first < size; first += 8) {
        for (int half = 0; half < GROUP; half += 32) {
            const uint8_t* start = codes + half * size + first;
            auto word = [start, size](int i) { return (long long)load64(start + i * size); };
            __m256i a[8], b[8];  // lane l of a[r]: eight bytes of code 8l + r
            for (int r = 0; r < 8; ++r) a[r] = _mm256_set_epi64x(word(24 + r), word(16 + r), word(8 + r), word(r));
            for (int r = 0; r < 4; ++r) {  // pairs of codes, even lanes in b[0 … 3], odd lanes in b[4 … 7]
                b[r] = _mm256_unpacklo_epi8(a[2 * r], a[2 * r + 1]);
                b[r + 4] = _mm256_unpackhi_epi8(a[2 * r], a[2 * r + 1]);
            }
            for (int r = 0; r < 8; r += 2) {  // fours: bytes 0 … 3 in a[r], bytes 4 … 7 in a[r + 1]
                a[r] = _mm256_unpacklo_epi16(b[r], b[r + 1]);
                a[r + 1] = _mm256_unpackhi_epi16(b[r], b[r + 1]);
            }
            for (int r = 0; r < 8; r += 4) {  // eights: bytes 2j and 2j + 1 in b[r + j]
                b[r] = _mm256_unpacklo_epi32(a[r], a[r + 2]);
                b[r + 1] = _mm256_unpackhi_epi32(a[r], a[r + 2]);
                b[r + 2] = _mm256_unpacklo_epi32(a[r + 1], a[r + 3]);
                b[r + 3] = _mm256_unpackhi_epi32(a[r + 1], a[r + 3]);
            }
            for (int j = 0; j < std::min(8, size - first); ++j) {
                const __m256i even = b[j / 2], odd = b[j / 2 + 4];
                const __m256i plane = j % 2 ? _mm256_unpackhi_epi64(even, odd) : _mm256_unpacklo_epi64(even, odd);
                _mm256_storeu_si256((__m256i*)(planes + (first + j) * BLOCK + half), plane);
            }
        }
    }
}

template <bool labels>
HYPHASH_AVX2 void count(const uint8_t* planes, int size, const uint8_t* query, int steps, int limit,
                        uint8_t* counts, uint64_t* hits) {
    const __m256i nibble = _mm256_set1_epi8(0x0f), most = _mm256_set1_epi8(char(std::min(limit, 255)));
    const __m256i bits = bits_of_nibbles();
    for (int pair = 0; pair < steps * (STEP / 128); ++pair, planes += 128, counts += 128) {
        __m256i sums[4] = {};
        for (int j = 0; j < size; ++j) {
            const __m256i wanted = _mm256_set1_epi8(char(query[j]));
            for (int u = 0; u < 4; ++u) {
                __m256i x = _mm256_loadu_si256((const __m256i*)(planes + j * BLOCK + u * 32));
                x = labels ? _mm256_and_si256(x, wanted) : _mm256_xor_si256(x, wanted);
                const __m256i low = _mm256_shuffle_epi8(bits, _mm256_and_si256(x, nibble));
                const __m256i high = _mm256_shuffle_epi8(bits, _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble));
                sums[u] = _mm256_adds_epu8(sums[u], _mm256_add_epi8(low, high));
            }
        }
        uint32_t met[4];
        for (int u = 0; u < 4; ++u) {
            _mm256_storeu_si256((__m256i*)(counts + u * 32), sums[u]);
            met[u] = uint32_t(_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_min_epu8(sums[u], most), sums[u])));
        }
        hits[2 * pair] = met[0] | uint64_t(met[1]) << 32;
        hits[2 * pair + 1] = met[2] | uint64_t(met[3]) << 32;
    }
}

HYPHASH_AVX2 inline void match(const uint8_t* rows, int size, uint64_t query, int64_t count, int limit,
                               uint64_t* hits) {
    const __m256i nibble = _mm256_set1_epi8(0x0f), zero = _mm256_setzero_si256();
    const __m256i used = _mm256_set1_epi64x((long long)(~uint64_t(0) >> (64 - 8 * size)));
    const __m256i wanted = _mm256_set1_epi64x((long long)query), beyond = _mm256_set1_epi64x(limit + 1);
    for (; count > 0; count -= GROUP) {
        uint64_t met = 0;
        for (int i = 0; i < std::min<int64_t>(GROUP, count); i += 4, rows += 4 * size) {
            auto word = [rows, size](int r) { return (long long)load64(rows + r * size); };
            __m256i x = size == 8 ? _mm256_loadu_si256((const __m256i*)rows)
                                  : _mm256_and_si256(_mm256_set_epi64x(word(3), word(2), word(1), word(0)), used);
            x = _mm256_xor_si256(x, wanted);
            const __m256i low = _mm256_shuffle_epi8(bits_of_nibbles(), _mm256_and_si256(x, nibble));
            const __m256i high =
                _mm256_shuffle_epi8(bits_of_nibbles(), _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble));
            const __m256i distances = _mm256_sad_epu8(_mm256_add_epi8(low, high), zero);
            const __m256i near = _mm256_cmpgt_epi64(beyond, distances);
            met |= uint64_t(_mm256_movemask_pd(_mm256_castsi256_pd(near))) << i;
        }
        *hits++ = met;
    }
}

constexpr Instructions instructions = {"avx2", transpose, count<false>, count<true>, match};

}  // namespace avx2

// ---- AVX-512 with bit counts in bytes (Ice Lake, Zen 4 and later): 64 codes at a time -------------------------

namespace avx512 {

#define HYPHASH_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512bitalg,avx512vpopcntdq")))

// Eight vectors of eight words each, turned around.
HYPHASH_AVX512 inline void transpose_words(__m512i v[8]) {
    __m512i t[8];
    for (int r = 0; r < 8; r += 2) {
        t[r] = _mm512_unpacklo_epi64(v[r], v[r + 1]);
        t[r + 1] = _mm512_unpackhi_epi64(v[r], v[r + 1]);
    }
    for (int odd = 0; odd < 2; ++odd) {  // t[odd], t[2 + odd] … hold the words odd, 2 + odd, 4 + odd, 6 + odd
        const __m512i a = _mm512_shuffle_i64x2(t[odd], t[2 + odd], 0x88);
        const __m512i b = _mm512_shuffle_i64x2(t[odd], t[2 + odd], 0xdd);
        const __m512i c = _mm512_shuffle_i64x2(t[4 + odd], t[6 + odd], 0x88);
        const __m512i d = _mm512_shuffle_i64x2(t[4 + odd], t[6 + odd], 0xdd);
        v[odd] = _mm512_shuffle_i64x2(a, c, 0x88);
        v[odd + 2] = _mm512_shuffle_i64x2(b, d, 0x88);
        v[odd + 4] = _mm512_shuffle_i64x2(a, c, 0xdd);
        v[odd + 6] = _mm512_shuffle_i64x2(b, d, 0xdd);
    }
}

HYPHASH_AVX512 inline void transpose(const uint8_t* codes, int size, uint8_t* planes) {
    const int stride = std::min(size, 8);  // bytes from code to code, once eight of them are in one vector
    alignas(64) uint8_t order[64];         // their byte j, one after the other, as word j
    for (int i = 0; i < 64; ++i) order[i] = uint8_t(i % 8 * stride + i / 8);
    const __m512i turn = _mm512_load_si512(order);
    for (int first = 0; first < size; first += 8) {
        __m512i v[8];
        for (int r = 0; r < 8; ++r) {
            const uint8_t* start = codes + 8 * r * size + first;
            auto word = [start, size](int i) { return (long long)load64(start + i * size); };
            const __m512i eight = size <= 8 ? _mm512_loadu_si512(start)
                                            : _mm512_set_epi64(word(7), word(6), word(5), word(4), word(3), word(2),
                                                               word(1), word(0));
            v[r] = _mm512_permutexvar_epi8(turn, eight);
        }
        transpose_words(v);
        for (int j = first; j < std::min(size, first + 8); ++j) _mm512_storeu_si512(planes + j * BLOCK, v[j - first]);
    }
}

template <bool labels>
HYPHASH_AVX512 void count(const uint8_t* planes, int size, const uint8_t* query, int steps, int limit,
                          uint8_t* counts, uint64_t* hits) {
    const __m512i most = _mm512_set1_epi8(char(std::min(limit, 255)));
    for (int step = 0; step < steps; ++step, planes += STEP, counts += STEP, hits += 4) {
        __m512i sums[4] = {};
        for (int j = 0; j < size; ++j) {
            const __m512i wanted = _mm512_set1_epi8(char(query[j]));
            for (int u = 0; u < 4; ++u) {
                const __m512i x = _mm512_loadu_si512(planes + j * BLOCK + u * 64);
                const __m512i met = labels ? _mm512_and_si512(x, wanted) : _mm512_xor_si512(x, wanted);
                sums[u] = _mm512_adds_epu8(sums[u], _mm512_popcnt_epi8(met));
            }
        }
        for (int u = 0; u < 4; ++u) {
            _mm512_storeu_si512(counts + u * 64, sums[u]);
            hits[u] = _mm512_cmple_epu8_mask(sums[u], most);
        }
    }
}

// How rows of `size` bytes are spread over lanes of more bytes: which byte goes where, and which stay zero.
struct alignas(64) Spread {
    uint8_t from[64] = {};
    uint64_t kept = 0;

    constexpr Spread(int size, int lane) {
        for (int i = 0; i < 64; ++i) {
            from[i] = uint8_t(i / lane * size + i % lane);
            kept |= uint64_t(i % lane < size) << i;
        }
    }
};
constexpr Spread SPREADS[] = {{1, 4}, {2, 4}, {3, 4}, {4, 4}, {5, 8}, {6, 8}, {7, 8}, {8, 8}};  // by size − 1

// Rows of up to four bytes are compared in 32-bit lanes, others in 64-bit lanes. The rows of one vector:
template <int lane, bool spread>
HYPHASH_AVX512 inline uint64_t match_vector(const uint8_t* rows, __m512i from, __mmask64 kept, __m512i wanted,
                                            __m512i most) {
    __m512i x = _mm512_loadu_si512(rows);
    if (spread) x = _mm512_maskz_permutexvar_epi8(kept, from, x);
    x = _mm512_xor_si512(x, wanted);
    return lane == 4 ? _mm512_cmple_epi32_mask(_mm512_popcnt_epi32(x), most)
                     : _mm512_cmple_epi64_mask(_mm512_popcnt_epi64(x), most);
}

template <int lane, bool spread>
HYPHASH_AVX512 void match_lanes(const uint8_t* rows, int size, uint64_t query, int64_t count, int limit,
                                uint64_t* hits) {
    constexpr int AT_ONCE = 64 / lane;
    const __m512i from = _mm512_load_si512(SPREADS[size - 1].from);
    const __mmask64 kept = SPREADS[size - 1].kept;
    const __m512i wanted = lane == 4 ? _mm512_set1_epi32(int(query)) : _mm512_set1_epi64((long long)query);
    const __m512i most = lane == 4 ? _mm512_set1_epi32(limit) : _mm512_set1_epi64(limit);
    for (; count >= GROUP; count -= GROUP) {
        uint64_t met = 0;
        for (int i = 0; i < GROUP; i += AT_ONCE, rows += AT_ONCE * size) {
            met |= match_vector<lane, spread>(rows, from, kept, wanted, most) << i;
        }
        *hits++ = met;
    }
    if (count > 0) *hits = 0;
    for (int i = 0; i < count; i += AT_ONCE, rows += AT_ONCE * size) {
        *hits |= match_vector<lane, spread>(rows, from, kept, wanted, most) << i;
    }
}

inline void match(const uint8_t* rows, int size, uint64_t query, int64_t count, int limit, uint64_t* hits) {
    const Match way = size < 4 ? match_lanes<4, true> : size == 4 ? match_lanes<4, false>
                    : size < 8 ? match_lanes<8, true> : match_lanes<8, false>;
    way(rows, size, query, count, limit, hits);
}

constexpr Instructions instructions = {"avx512", transpose, count<false>, count<true>, match};

}  // namespace avx512
#endif

// What this processor can do, the fastest first. The compilers' own __builtin_cpu_supports asks a library of theirs,
// which on Windows nobody links.
inline std::vector<const Instructions*> available() {
    std::vector<const Instructions*> found;
#if defined(__x86_64__)
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    auto all = [](unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; };
    unsigned saved = 0;  // registers that the system keeps for each process: XCR0
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) && all(ecx, bit_OSXSAVE)) {
        __asm__ volatile("xgetbv" : "=a"(saved), "=d"(edx) : "c"(0));
    }
    constexpr unsigned YMM = 0x06, ZMM = 0xe6;
#if defined(__APPLE__)
    if (all(saved, YMM)) saved |= ZMM;  // it keeps the wide ones from their first use on
#endif
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        if (all(saved, ZMM) && all(ebx, unsigned(bit_AVX512F) | bit_AVX512BW | bit_AVX512VL) &&
            all(ecx, bit_AVX512VBMI | bit_AVX512BITALG | bit_AVX512VPOPCNTDQ)) {
            found.push_back(&avx512::instructions);
        }
        if (all(saved, YMM) && all(ebx, bit_AVX2)) found.push_back(&avx2::instructions);
    }
#endif
    found.push_back(&portable::instructions);
    return found;
}

}  // namespace hyphash
