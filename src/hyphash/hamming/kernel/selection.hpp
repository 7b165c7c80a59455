// The k nearest, found by counting: distances are small integers, so no heap is needed.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hyphash {

constexpr int MAX_BITS = 256;

// Takes codes in the order of their ids and keeps those that may be among the k nearest.
//
// counts[d] says how many of distance d were taken. `ceiling` is the least distance up to which k are at hand
// (or the radius, while there are fewer). A later code as far away as the ceiling has a greater id and comes too
// late, so once there are k only distances below the ceiling pass.
class Selection {
public:
    // Look for the k nearest of so many codes, no farther than `radius`.
    void reset(int64_t k, int64_t codes, int radius) {
        k_ = k;
        ceiling_ = radius;
        limit_ = k ? radius : -1;
        held_ = 0;
        used_ = 0;
        taken_.resize(size_t(std::min(2 * k, codes)) + 64);
        counts_.assign(size_t(radius) + 1, 0);
    }

    int limit() const { return limit_; }  // codes farther away need not be shown; −1: no more codes at all
    bool complete() const { return held_ >= k_; }

    void take(int distance, int64_t id) {
        taken_[used_++] = uint64_t(distance) << 48 | uint64_t(id);
        ++counts_[size_t(distance)];
        ++held_;
    }

    // To be called when some codes were taken, at the latest after 64.
    void tighten() {
        while (held_ - counts_[size_t(ceiling_)] >= k_) held_ -= counts_[size_t(ceiling_--)];
        if (held_ >= k_) limit_ = ceiling_ - 1;
        if (used_ + 64 > taken_.size()) compact();
    }

    const uint64_t* begin() const { return taken_.data(); }
    const uint64_t* end() const { return taken_.data() + used_; }

    static int distance(uint64_t entry) { return int(entry >> 48); }
    static int64_t id(uint64_t entry) { return int64_t(entry & 0xffffffffffff); }

private:
    // Drop what lies beyond the ceiling, and of what lies at the ceiling all but the first.
    void compact() {
        const int64_t nearer = held_ - counts_[size_t(ceiling_)];
        int64_t room = k_ - nearer;
        size_t kept = 0;
        for (const uint64_t entry : *this) {
            const int d = distance(entry);
            if (d < ceiling_ || (d == ceiling_ && room-- > 0)) taken_[kept++] = entry;
        }
        used_ = kept;
        held_ = int64_t(kept);
        counts_[size_t(ceiling_)] = held_ - nearer;
    }

    int64_t k_ = 0, held_ = 0;  // held_: how many lie no farther than the ceiling
    int ceiling_ = 0, limit_ = -1;
    size_t used_ = 0;
    std::vector<uint64_t> taken_;  // distance << 48 | id, ids ascending
    std::vector<int64_t> counts_;
};

struct Span {  // entries as in a Selection
    const uint64_t *first, *last;

    const uint64_t* begin() const { return first; }
    const uint64_t* end() const { return last; }
};

// Order entries by id, whatever their distances: by one byte of the ids after the other, the lowest first. Ids are
// below `end`. Some tens of numbers are sorted as fast by comparing them.
inline void sort_by_id(std::vector<uint64_t>& entries, int64_t end) {
    if (entries.size() < 64) {
        std::sort(entries.begin(), entries.end(), [](uint64_t a, uint64_t b) { return a << 16 < b << 16; });
        return;
    }
    std::vector<uint64_t> other(entries.size());
    for (int shift = 0; shift < 48 && end >> shift; shift += 8) {
        size_t next[257] = {};
        for (const uint64_t entry : entries) ++next[(entry >> shift & 255) + 1];
        for (int i = 1; i < 256; ++i) next[i] += next[i - 1];
        for (const uint64_t entry : entries) other[next[entry >> shift & 255]++] = entry;
        entries.swap(other);
    }
}

// Write the k nearest of several parts by (distance, id). In each part the ids of one distance ascend, and they
// ascend from part to part.
inline void write_nearest(const std::vector<Span>& parts, int64_t k, int radius, int32_t* distances, int64_t* ids) {
    int64_t next[MAX_BITS + 2] = {};
    for (const Span& part : parts) {
        for (const uint64_t entry : part) ++next[Selection::distance(entry) + 1];
    }
    for (int d = 1; d <= radius + 1; ++d) next[d] += next[d - 1];
    for (const Span& part : parts) {
        for (const uint64_t entry : part) {
            const int d = Selection::distance(entry);
            const int64_t place = next[d]++;
            if (place >= k) continue;
            distances[place] = d;
            ids[place] = Selection::id(entry);
        }
    }
}

}  // namespace hyphash
