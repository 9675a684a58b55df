// Programmatic dependent launch (Hopper): a kernel that is launched with the attribute may start while the kernel before
// it in the stream still runs, and waits on the device for it instead.
//
// PTX ISA: "griddepcontrol".
#pragma once

namespace warpweave {

// Waits until the kernels that this one depends on have ended and what they wrote is visible; returns at once in a kernel
// that was launched without the attribute. Every thread, before it touches memory that others read or write.
__device__ __forceinline__ void wait_for_prerequisites() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Lets the kernel that depends on this one take the multiprocessors as they become free. It still waits for the end of
// this one before it touches memory. Without such a launch, and before Hopper, it does nothing.
__device__ __forceinline__ void admit_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace warpweave
