// Programmatic dependent launch (Hopper): a kernel that is launched with the attribute may start while the
// previous kernel of the stream still runs, and waits for it on the device.
//
// PTX ISA: "griddepcontrol".
#pragma once

namespace warpweave {

// Waits until the kernels that this one depends on have ended and their writes are visible; returns at once
// in a kernel that was launched without the attribute, as all are before Hopper. Every thread, before it
// touches memory that others read or write.
__device__ __forceinline__ void wait_for_prerequisites() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the dependent kernel start on SMs as they become free. It still waits for the end of this one before
// it touches memory. Does nothing without such a launch, and before Hopper.
__device__ __forceinline__ void admit_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace warpweave
