// What g++ calls before every access of a kernel that is built with -fsanitize=thread,alignment: the interface of
// libtsan and libubsan (gcc/sanitizer.def), of which only the calls are used and not the libraries.
#pragma once
#include "watch.hpp"

namespace machine {
namespace {

struct TypeMismatch {  // libubsan's data of a handler, as far as it is needed
  const char* file;
  std::uint32_t line, column;
  const void* type;
  unsigned char log_alignment, kind;
};

}  // namespace
}  // namespace machine

extern "C" {

#define ONEKERNEL_HOOK(bytes)                     \
  void __tsan_read##bytes(void* address) {        \
    ONEKERNEL_HERE();                             \
    machine::watch(address, bytes, false, false); \
  }                                               \
  void __tsan_write##bytes(void* address) {       \
    ONEKERNEL_HERE();                             \
    machine::watch(address, bytes, true, false);  \
  }
ONEKERNEL_HOOK(1)
ONEKERNEL_HOOK(2)
ONEKERNEL_HOOK(4)
ONEKERNEL_HOOK(8)
ONEKERNEL_HOOK(16)
#undef ONEKERNEL_HOOK

void __tsan_read_range(void* address, std::size_t bytes) {
  ONEKERNEL_HERE();
  machine::watch(address, bytes, false, false);
}
void __tsan_write_range(void* address, std::size_t bytes) {
  ONEKERNEL_HERE();
  machine::watch(address, bytes, true, false);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

void __ubsan_handle_type_mismatch_v1(const machine::TypeMismatch* data, std::uintptr_t address) {
  ONEKERNEL_HERE();
  machine::fail(machine::format("misaligned access, %u bytes of alignment are expected (", 1u << data->log_alignment) +
                machine::memory(reinterpret_cast<const void*>(address)) + ")");
}

}  // extern "C"
