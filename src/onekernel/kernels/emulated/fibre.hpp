// A fibre: a stack and a place to continue. Switching costs a few nanoseconds on x86-64; elsewhere ucontext is
// used, which is slower (two system calls a switch) but portable.
#pragma once
#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace machine {

constexpr std::size_t kStackBytes = 128 * 1024;
constexpr std::size_t kGuardBytes = 64 * 1024;  // below it: an overflow stops the process, not a neighbour

inline char* new_stack() {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) return nullptr;
  return static_cast<char*>(memory) + kGuardBytes;
}

#if defined(__x86_64__) && !defined(ONEKERNEL_PORTABLE_FIBRES)

using Context = void*;  // a saved stack pointer

// Save the callee-saved registers on this stack, continue on the other one.
extern "C" void onekernel_switch(Context* from, Context to);
asm(R"(
.text
.type onekernel_switch, @function
onekernel_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size onekernel_switch, .-onekernel_switch
)");

inline void start(Context* context, char* stack, void (*entry)()) {
  auto top = reinterpret_cast<std::uintptr_t>(stack + kStackBytes) & ~std::uintptr_t{15};
  auto* slot = reinterpret_cast<void**>(top);
  *--slot = nullptr;  // keeps the stack 16-byte aligned at entry, as after a call
  *--slot = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--slot = nullptr;
  *context = slot;
}
inline void resume(Context* from, Context* to) { onekernel_switch(from, *to); }

#else

using Context = ucontext_t;

inline void start(Context* context, char* stack, void (*entry)()) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStackBytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}
inline void resume(Context* from, Context* to) { swapcontext(from, to); }

#endif

}  // namespace machine
