// What the lanes of a warp give each other for operations on matrices.
#pragma once
#include "wait.hpp"
#include "watch.hpp"

namespace machine {

void gather_fragments(Fragments& all, const unsigned (&a)[4], const unsigned (&b)[2]) {
  ONEKERNEL_HERE();
  if (self().warp().size != kWarpLanes) fail("a product of matrices by less than 32 lanes");
  unsigned given[6];
  std::memcpy(given, a, sizeof(a));
  std::memcpy(given + 4, b, sizeof(b));
  const Meeting& meeting = gather("product of matrices", ~0u, given, sizeof(given));
  for (unsigned lane = 0; lane < kWarpLanes; ++lane)
    std::memcpy(&all.lane[lane], meeting.values[lane].bytes, sizeof(given));
}

void load_matrices(unsigned* result, int matrices, bool transposed, const void* row) {
  ONEKERNEL_HERE();
  const Fibre& fibre = self();
  if (fibre.warp().size != kWarpLanes) fail("a load of matrices by less than 32 lanes");
  if (fibre.lane() < 8 * static_cast<unsigned>(matrices)) {  // the addresses of the others are not used
    const auto* byte = static_cast<const char*>(row);
    if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0)
      fail("a row that is not aligned to 16 bytes (" + memory(row) + ")");
    if (byte < fibre.home->shared || byte + 16 > fibre.home->shared + shared_bytes())
      fail("a row that does not lie in the block's shared memory (" + memory(row) + ")");
    if (state.launch.sanitize) watch(row, 16, false, false);
  }
  const Meeting& meeting =
      gather(transposed ? "transposed load of matrices" : "load of matrices", ~0u, &row, sizeof(row));
  const unsigned group = fibre.lane() / 4, pair = fibre.lane() % 4 * 2;
  for (unsigned matrix = 0; matrix < static_cast<unsigned>(matrices); ++matrix) {
    result[matrix] = 0;
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned r = transposed ? pair + half : group, column = transposed ? group : pair + half;
      const char* at = nullptr;
      std::memcpy(&at, meeting.values[8 * matrix + r].bytes, sizeof(at));
      std::uint16_t element;
      std::memcpy(&element, at + 2 * column, sizeof(element));
      result[matrix] |= static_cast<unsigned>(element) << 16 * half;
    }
  }
}

}  // namespace machine
