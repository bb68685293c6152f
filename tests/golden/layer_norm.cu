// layer_norm for sm_90, 128 threads a block
#include "rows/normalise.cuh"

constexpr int hidden = 64;

extern "C" __global__ void __launch_bounds__(128)
layer_norm(const float* in0, const float* in1, const float* in2, float* out0, int outer, int inner) {
  start_successor();
  const LaneRow<1, 4, 16> place(outer, hidden, inner);
  await_predecessor();
  auto row = hold(place, [&](auto at) {
    const auto x0 = at.load(in0);
    return x0;
  });
  const auto x1 = hold(place, [&](auto at) { return at.load_channel(in1); });
  const auto x2 = hold(place, [&](auto at) { return at.load_channel(in2); });
  standardize(place, row, 1e-05f);
  transform(place, row, [&](auto at, auto n) {
#line 1 "chain:scale"
    const auto v0 = each<op::mul>(n, x1[at]);
#line 1 "chain:shift"
    const auto v1 = each<op::add>(v0, x2[at]);
#line 24 "kernel.cu"
    return v1;
  });
  store(place, out0, row);
  place.finish();
}
