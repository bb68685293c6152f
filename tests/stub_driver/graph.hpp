// Graphs of kernel nodes, made by hand or by capture, and their executables.
#pragma once
#include <algorithm>
#include <memory>

#include "launch.hpp"

namespace stub {

struct Graph {
  std::vector<Node*> nodes;  // in the order in which they were added
};
struct Executable {
  std::vector<std::pair<Node*, Node>> nodes;  // whose copy it is, and the copy; in an order that may run
  Context* context;
};
struct Edge {
  unsigned char from_port, to_port, type, reserved[5];
};
struct NodeParameters {  // CUDA_KERNEL_NODE_PARAMS
  void* function;
  unsigned gx, gy, gz, x, y, z, shared;
  void** arguments;
  void** extra;
  void* kernel;
  Context* context;
};

inline Pool<Node> nodes;
inline Pool<Graph> graphs;
inline Pool<Executable> executables;

inline std::vector<std::vector<char>> copy_values(const Kernel& kernel, void** arguments) {
  std::vector<std::vector<char>> values;
  if (kernel.sizes != nullptr)
    for (unsigned i = 0; kernel.sizes[i] != 0; ++i) {
      const char* from = static_cast<const char*>(arguments[i]);
      values.emplace_back(from, from + kernel.sizes[i]);
    }
  return values;
}

inline Node* add(Graph* graph, Kernel* kernel, const Shape& shape, void** arguments) {
  graph->nodes.push_back(nodes.make(graph, kernel, shape, copy_values(*kernel, arguments)));
  return graph->nodes.back();
}

inline Result record(Stream& stream, Kernel* kernel, const Shape& shape, void** arguments) {
  const Hold hold(structure);
  Node* last = stream.graph->nodes.empty() ? nullptr : stream.graph->nodes.back();
  Node* node = add(stream.graph, kernel, shape, arguments);
  if (last != nullptr) node->after.push_back(last);
  return CUDA_SUCCESS;
}

inline Result cuStreamBeginCapture(Stream* stream, Mode mode) {
  const Hold hold(structure);
  if (reinterpret_cast<std::uintptr_t>(stream) <= 2) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (streams.find(stream) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->status != kNone) return CUDA_ERROR_ILLEGAL_STATE;
  stream->status = kActive, stream->mode = mode, stream->thread = std::this_thread::get_id();
  stream->graph = graphs.make();
  ++captures;
  if (blocking(*stream)) ++stream->context->blocking_captures;
  return CUDA_SUCCESS;
}

inline Result cuStreamEndCapture(Stream* stream, Graph** graph) {
  const Hold hold(structure);
  if (streams.find(stream) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->status == kNone) return CUDA_ERROR_ILLEGAL_STATE;
  const bool stranger = stream->mode != kRelaxed && stream->thread != std::this_thread::get_id();
  const bool spoiled = stream->status == kInvalidated;
  end_capture(*stream);
  *graph = nullptr;
  if (stranger) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  if (spoiled) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  return *graph = stream->graph, CUDA_SUCCESS;
}

inline Result cuGraphCreate(Graph** graph, unsigned) {
  const Hold hold(structure);
  return *graph = graphs.make(), CUDA_SUCCESS;
}

inline Result cuGraphDestroy(Graph* graph) {
  const Hold hold(structure);
  if (graphs.find(graph) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (Node* node : graph->nodes) nodes.drop(node);
  return graphs.drop(graph), CUDA_SUCCESS;
}

inline Kernel* kernel_in(const NodeParameters& asked) {
  if (Function* function = functions.find(asked.function)) return function->kernel;
  return kernels.find(asked.kernel);
}

inline Shape shape_in(const NodeParameters& asked, const Shape& old) {
  Shape shape = old;
  shape.grid = {asked.gx, asked.gy, asked.gz}, shape.block = {asked.x, asked.y, asked.z}, shape.shared = asked.shared;
  return shape;
}

inline Result cuGraphAddKernelNode(Node** node, Graph* graph, Node* const* after, std::size_t count_,
                                   const NodeParameters* asked) {
  const Hold hold(structure);
  STUB_NEEDS_CONTEXT;
  Kernel* kernel = kernel_in(*asked);
  if (graphs.find(graph) == nullptr || kernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Shape shape = shape_in(*asked, {});
  if (const Result refused = check_shape(*current()->device, *kernel, shape); refused != CUDA_SUCCESS) return refused;
  *node = add(graph, kernel, shape, asked->arguments);
  return (*node)->after.assign(after, after + count_), CUDA_SUCCESS;
}

inline Result cuGraphAddDependencies(Graph* graph, Node* const* from, Node* const* to, const Edge* edges,
                                     std::size_t count_) {
  const Hold hold(structure);
  if (graphs.find(graph) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count_; ++i) {
    if (nodes.find(from[i]) == nullptr || nodes.find(to[i]) == nullptr || from[i] == to[i])
      return CUDA_ERROR_INVALID_VALUE;
    const auto& known = to[i]->after;
    if (std::find(known.begin(), known.end(), from[i]) != known.end()) return CUDA_ERROR_INVALID_VALUE;
    if (edges != nullptr && (edges[i].type > 1 || (edges[i].type == 1 && edges[i].from_port == 0)))
      return CUDA_ERROR_INVALID_VALUE;
    to[i]->after.push_back(from[i]);
  }
  return CUDA_SUCCESS;
}

inline Result cuGraphKernelNodeSetAttribute(Node* node, int kind, const unsigned* value) {
  const Hold hold(structure);
  return nodes.find(node) == nullptr ? CUDA_ERROR_INVALID_VALUE : apply(node->shape, kind, value);
}

inline Result set(Node& node, const NodeParameters& asked) {
  Kernel* kernel = kernel_in(asked);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Shape shape = shape_in(asked, node.shape);
  if (const Result refused = check_shape(*current()->device, *kernel, shape); refused != CUDA_SUCCESS) return refused;
  node.kernel = kernel, node.shape = shape;
  return node.values = copy_values(*node.kernel, asked.arguments), CUDA_SUCCESS;
}

inline Result cuGraphKernelNodeSetParams(Node* node, const NodeParameters* asked) {
  const Hold hold(structure);
  if (current() == nullptr) std::abort();  // the driver crashes here
  return nodes.find(node) == nullptr ? CUDA_ERROR_INVALID_VALUE : set(*node, *asked);
}

inline Result cuGraphInstantiate(Executable** made, Graph* graph, unsigned long long) {
  const Hold hold(structure);
  STUB_NEEDS_CONTEXT;
  STUB_UNSAFE;
  if (graphs.find(graph) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Executable executable{{}, current()};
  const auto done = [&](Node* node) {
    return std::any_of(executable.nodes.begin(), executable.nodes.end(),
                       [&](auto& item) { return item.first == node; });
  };
  for (std::size_t before = 0; executable.nodes.size() < graph->nodes.size(); before = executable.nodes.size()) {
    for (Node* node : graph->nodes)
      if (!done(node) && std::all_of(node->after.begin(), node->after.end(), done))
        executable.nodes.emplace_back(node, *node);
    if (executable.nodes.size() == before) return CUDA_ERROR_INVALID_VALUE;  // a cycle
  }
  return *made = executables.make(std::move(executable)), CUDA_SUCCESS;
}

inline Result cuGraphExecKernelNodeSetParams(Executable* executable, Node* node, const NodeParameters* asked) {
  const Hold hold(structure);
  STUB_NEEDS_CONTEXT;
  if (executables.find(executable) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (auto& [original, copy] : executable->nodes)
    if (original == node) return set(copy, *asked);
  return CUDA_ERROR_INVALID_VALUE;
}

inline Result cuGraphLaunch(Executable* executable, Stream* where) {
  Stream* stream;
  if (executables.find(executable) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const Result refused = stream_of(where, &stream); refused != CUDA_SUCCESS) return refused;
  if (stream->status != kNone) return CUDA_ERROR_NOT_SUPPORTED;
  for (auto& [original, node] : executable->nodes) {
    std::vector<void*> arguments;
    for (auto& value : node.values) arguments.push_back(value.data());
    run(stream->context, *node.kernel, node.shape, arguments.data());
  }
  return CUDA_SUCCESS;
}

inline Result cuGraphExecDestroy(Executable* executable) {
  const Hold hold(structure);
  if (executables.find(executable) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return executables.drop(executable), CUDA_SUCCESS;
}

}  // namespace stub
