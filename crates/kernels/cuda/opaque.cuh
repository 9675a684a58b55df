// Keeps the compiler from hoisting cheap address arithmetic out of a loop whose body needs all registers.
#pragma once

namespace warpweave {

// The same value, opaque to the compiler: what is derived from it is computed here again, and not kept in
// registers through the loops around.
template <typename Integer>
__device__ __forceinline__ Integer forget(Integer value) {
  if constexpr (sizeof(Integer) == 8) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
  return value;
}

}  // namespace warpweave
