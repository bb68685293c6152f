"""What a status of the driver means to the person who meets it, and what to do."""

from __future__ import annotations

ADVICE = {
    3: "the driver was not initialised in this process; after a fork it never is: start workers by spawn",
    34: "this libcuda.so.1 is the toolkit's link-time stub: take its folder (.../stubs) out of LD_LIBRARY_PATH",
    46: "another process has the GPU to itself, or its compute mode is PROHIBITED: see `nvidia-smi -q -d COMPUTE`",
    100: "no GPU is visible: see nvidia-smi, CUDA_VISIBLE_DEVICES, and the container's --gpus option",
    200: "the kernel is damaged, or was built by an NVRTC of a newer CUDA major version than the driver's",
    201: "no GPU is current on this thread: give a stream of the GPU, or make its context current",
    209: "the kernel was built for another GPU: build it for this one",
    218: "the driver could not finish the PTX: update the driver, or install an NVRTC that knows this GPU",
    222: "the PTX is newer than the driver: update the driver, or install an nvidia-cuda-nvrtc that is not newer; "
    "cubins are not affected",
    700: "a kernel used memory that is not its own: run it on the emulated device with sanitize=True",
    719: "a kernel broke off: run it on the emulated device with sanitize=True, or under compute-sanitizer",
    720: "the blocks of a cooperative launch must all fit on the GPU at once: launch fewer",
    802: "the system is not ready: on machines with NVSwitch, start the fabric manager",
    803: "the driver's kernel module and libcuda are of different versions: reboot, or reload the module",
    804: "a compatibility libcuda runs on a GPU that does not allow it: remove it from LD_LIBRARY_PATH",
    900: "the call is not allowed while a stream is captured: build and load kernels before (warm up)",
    901: "an earlier call spoiled the capture: build and load kernels before (warm up)",
    906: "a stream that waits for the default stream is captured: launch on the stream that is captured",
    999: "the driver is in trouble: see dmesg; after a suspend reload the module nvidia_uvm, else reboot",
}
