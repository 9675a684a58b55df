// Keeping the compiler from hoisting cheap address arithmetic out of a loop whose body needs all registers.
#pragma once

namespace warpweave {

// The same value, of which the compiler knows nothing: what is derived from it is derived here again, and not kept in
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
