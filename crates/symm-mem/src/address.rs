//! Addresses of device memory.

/// An address in the address space of the backend's device: a `CUdeviceptr`, or a host address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The null address.
    pub const NULL: DevicePtr = DevicePtr(0);

    /// This address plus `bytes`.
    #[must_use]
    pub const fn add(self, bytes: usize) -> DevicePtr {
        DevicePtr(self.0 + bytes as u64)
    }

    /// This address, unless it is null.
    pub fn non_null(self) -> Option<DevicePtr> {
        (self != DevicePtr::NULL).then_some(self)
    }

    /// As a pointer. Valid on the host backend only.
    pub const fn as_host<T>(self) -> *mut T {
        self.0 as *mut T
    }
}
