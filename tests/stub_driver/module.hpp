// Binaries: emulated kernels, which run; cubins and PTX, which are checked as the driver checks them and do nothing.
#pragma once
#include <dlfcn.h>
#include <elf.h>

#include <cctype>

#include "stream.hpp"

namespace stub {

struct Library {
  void* shared = nullptr;         // of an emulated kernel
  std::string kernels;            // a text that has the names of the others
  Result refusal = CUDA_SUCCESS;  // what asking for a kernel answers: a load is never refused
};

struct Kernel {
  Library* library;
  std::string name;
  void (*run)(void**) = nullptr;
  const unsigned* sizes = nullptr;  // of the parameters, bytes, ended by 0
  unsigned shared = 0;              // dynamic shared memory that a launch may ask for; 0: the default
};
struct Function {  // a kernel in a context
  Kernel* kernel;
  Context* context;
};

inline Pool<Library> libraries;
inline Pool<Kernel> kernels;
inline Pool<Function> functions;

// The newest PTX that the driver of a CUDA version reads (PTX ISA, "Release Notes").
inline int newest_ptx(int cuda) {
  const int major = cuda / 1000, minor = cuda % 1000 / 10;
  if (major >= 13) return 90 + 10 * (major - 13) + minor;
  if (major == 12) return minor >= 6 ? 79 + minor : minor >= 5 ? 85 : 80 + minor;  // 12.6 is 8.5 again
  return 70 + minor;
}

inline int number_after(const std::string& text, const char* word) {
  const std::size_t at = text.find(word);
  int value = 0;
  if (at != std::string::npos)
    for (const char* c = text.c_str() + at + std::strlen(word); std::isdigit(*c) || *c == '.'; ++c)
      if (*c != '.') value = 10 * value + (*c - '0');
  return value;
}

inline Result check_ptx(const std::string& text, int arch) {
  int driver = 0;
  cuDriverGetVersion(&driver);
  if (number_after(text, ".version ") > newest_ptx(driver)) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  return number_after(text, ".target sm_") > arch ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}

// A cubin runs on its own architecture and on later ones of the same major number.
inline Result check_cubin(const Elf64_Ehdr& header, int arch) {
  const int abi = header.e_ident[EI_ABIVERSION];
  const int built = static_cast<int>(abi >= 8 ? header.e_flags >> 8 & 0xffff : header.e_flags & 0xff);
  return built / 10 == arch / 10 && built <= arch ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

inline std::string section_names(const unsigned char* image, const Elf64_Ehdr& header) {
  Elf64_Shdr names;
  std::memcpy(&names, image + header.e_shoff + std::size_t{header.e_shstrndx} * header.e_shentsize, sizeof(names));
  return {reinterpret_cast<const char*>(image + names.sh_offset), names.sh_size};
}

inline void* open_shared(const unsigned char* image, const Elf64_Ehdr& header) {
  const std::size_t bytes = header.e_shoff + std::size_t{header.e_shentsize} * header.e_shnum;
  const int file = memfd_create("emulated", 0);
  if (write(file, image, bytes) != static_cast<ssize_t>(bytes)) std::abort();
  void* shared = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (shared == nullptr) std::fprintf(stderr, "stub driver: %s\n", dlerror());
  return shared;  // the file stays open: its name is the library's identity
}

inline Library read_binary(const unsigned char* image) {
  const int arch = devices.front().part.arch;
  Library made;
  Elf64_Ehdr header;
  if (std::memcmp(image, ELFMAG, SELFMAG) != 0) {
    made.kernels = reinterpret_cast<const char*>(image);
    const bool ptx = made.kernels.find(".version") != std::string::npos;
    made.refusal = ptx ? check_ptx(made.kernels, arch) : CUDA_ERROR_INVALID_IMAGE;
  } else if (std::memcpy(&header, image, sizeof(header)); header.e_machine == 190) {  // EM_CUDA
    made.kernels = section_names(image, header);
    made.refusal = check_cubin(header, arch);
  } else if ((made.shared = open_shared(image, header)) == nullptr) {
    made.refusal = CUDA_ERROR_INVALID_IMAGE;
  }
  return made;
}

// Loading is allowed while a stream is captured; unloading is not.
inline Result cuLibraryLoadData(Library** library, const unsigned char* image, void*, void*, unsigned, void*, void*,
                                unsigned) {
  const Hold hold(structure);
  count(loads);
  return *library = libraries.make(read_binary(image)), CUDA_SUCCESS;
}

inline Result cuLibraryUnload(Library* library) {
  const Hold hold(structure);
  STUB_UNSAFE;
  if (libraries.find(library) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  functions.each([&](Function& item) {
    if (item.kernel->library == library) functions.drop(&item);
  });
  kernels.each([&](Kernel& item) {
    if (item.library == library) kernels.drop(&item);
  });
  return libraries.drop(library), CUDA_SUCCESS;
}

inline bool has_kernel(const Library& library, const std::string& name) {
  const std::string section = ".text." + name + '\0', entry = ".entry " + name;  // in a cubin, in PTX
  return library.kernels.find(section) != std::string::npos || library.kernels.find(entry) != std::string::npos;
}

inline Result cuLibraryGetKernel(Kernel** kernel, Library* library, const char* name) {
  const Hold hold(structure);
  if (libraries.find(library) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (library->refusal != CUDA_SUCCESS) return library->refusal;
  Kernel made{library, name};
  if (library->shared != nullptr) {
    const std::string symbol = std::string("emulated_") + name;
    made.run = reinterpret_cast<void (*)(void**)>(dlsym(library->shared, symbol.c_str()));
    const auto sizes = reinterpret_cast<const unsigned* (*)()>(dlsym(library->shared, (symbol + "_sizes").c_str()));
    if (made.run == nullptr || sizes == nullptr) return CUDA_ERROR_NOT_FOUND;
    made.sizes = sizes();
  } else if (!has_kernel(*library, name)) {
    return CUDA_ERROR_NOT_FOUND;
  }
  return *kernel = kernels.make(made), CUDA_SUCCESS;
}

inline Result cuKernelGetFunction(Function** function, Kernel* kernel) {
  const Hold hold(structure);
  STUB_NEEDS_CONTEXT;
  if (kernels.find(kernel) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return *function = functions.make(kernel, current()), CUDA_SUCCESS;
}

inline Result cuFuncLoad(Function* function) {
  return functions.find(function) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

inline Result cuFuncSetAttribute(Function* function, int kind, int value) {
  const Hold hold(structure);
  if (functions.find(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (kind != 8) return CUDA_ERROR_NOT_SUPPORTED;  // only the largest dynamic shared memory
  if (value > function->context->device->part.shared_optin) return CUDA_ERROR_INVALID_VALUE;
  return function->kernel->shared = static_cast<unsigned>(value), CUDA_SUCCESS;
}

}  // namespace stub
