// Proved at compile time: the wgmma descriptors address the elements where TMA stores them.
//
// `read_at` models how the hardware reads an operand with the swizzle of 128 bytes, after "Shared Memory
// Matrix Layout" of the PTX ISA: an offset by groups of eight rows and by boxes, and an exclusive or of bits
// 4 to 6 of the address with bits 7 to 9. `stored_at` is where TMA puts the element. Only tests on a device
// show that the hardware follows both models.
#pragma once

#include "schedule.cuh"

namespace warpweave::proof {

// The byte from which element (`i` along M or N, `k`) of an instruction's operand is read.
template <Major kMajor>
constexpr uint32_t read_at(uint64_t descriptor, uint32_t i, uint32_t k) {
  const uint32_t start = uint32_t(descriptor & 0x3fff) << 4;
  const uint32_t leading = uint32_t(descriptor >> 16 & 0x3fff) << 4;
  const uint32_t stride = uint32_t(descriptor >> 32 & 0x3fff) << 4;
  const uint32_t linear =
      kMajor == Major::kK ? start + i / 8 * stride + i % 8 * kSwizzledRow + k * 2
                          : start + i / kBox * leading + i % kBox * 2 + k / 8 * stride + k % 8 * kSwizzledRow;
  return linear ^ (linear / kSwizzledRow % 8) << 4;
}

// The byte of the element in boxes that start at `base`; `k` counts from the start of the tile.
template <Major kMajor>
constexpr uint32_t stored_at(uint32_t base, uint32_t i, uint32_t k) {
  return kMajor == Major::kK ? base + swizzled(i, k * 2)
                             : base + i / kBox * (kBox * kSwizzledRow) + swizzled(k, i % kBox * 2);
}

// Whether all instructions of a step read `extent` rows or columns from where they are stored.
template <Major kMajor>
constexpr bool reads_what_is_stored(uint32_t base, uint32_t extent) {
  const uint64_t first = wgmma_descriptor<kMajor>(base, kBox * kSwizzledRow);
  for (uint32_t k = 0; k < kBox; ++k) {
    const uint64_t descriptor = first + k / kWgmmaDepth * kDescriptorStep<kMajor>;
    for (uint32_t i = 0; i < extent; ++i) {
      if (read_at<kMajor>(descriptor, i, k % kWgmmaDepth) != stored_at<kMajor>(base, i, k)) return false;
    }
  }
  return true;
}

// A of the second consumer; B of the last stage, at its address in shared memory.
static_assert(reads_what_is_stored<Major::kK>(0x400 + 8192, 64));
static_assert(reads_what_is_stored<Major::kK>(0x2a400, 256) &&
              reads_what_is_stored<Major::kMN>(0x2a400, 256));
static_assert(reads_what_is_stored<Major::kK>(0x2e400, 64) && reads_what_is_stored<Major::kMN>(0x2e400, 64));
static_assert(reads_what_is_stored<Major::kK>(0x2c400, 128) &&
              reads_what_is_stored<Major::kMN>(0x2c400, 128));

// The eight rows of a matrix, which `stmatrix` stores at a time, are in different banks.
constexpr bool rows_in_different_banks() {
  uint32_t chunks = 0;
  for (uint32_t row = 0; row < 8; ++row) chunks |= 1u << (swizzled(row, 0) / 16 % 8);
  return chunks == 0xff;
}
static_assert(rows_in_different_banks());

// The raster visits each tile once.
constexpr bool visits_each_once(Raster raster) {
  uint64_t seen = 0;
  for (uint32_t index = 0; index < raster.count(); ++index) {
    const ClusterTile tile = raster.at(index);
    if (tile.row >= raster.rows || tile.column >= raster.columns) return false;
    seen |= uint64_t(1) << (tile.row * raster.columns + tile.column);
  }
  return seen == (uint64_t(1) << raster.count()) - 1;
}
static_assert(visits_each_once({5, 7, 2}) && visits_each_once({7, 5, 8}) && visits_each_once({1, 9, 3}));

}  // namespace warpweave::proof
