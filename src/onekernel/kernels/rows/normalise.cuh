// Row-wise standardisation, (x - mean) / sqrt(variance + epsilon), with what surrounds it fused in.
//
// The caller gives a place (rows/place.cuh) and two functions of a position:
//   prologue(at) -> x            loads operands, computes the values that are normalised, may store them
//   epilogue(at, y)              scales, shifts, activates and stores the normalised values
// Statistics are float and two-pass (mean first, then squares of differences), which keeps their relative error
// near float epsilon whatever the mean (Chan, Golub, LeVeque 1983, section 2).
#pragma once
#include "rows/place.cuh"

template <class Statistic>
ONEKERNEL_DEVICE Statistic inverse_deviation(const Statistic& squares, int hidden, float epsilon) {
  return each<op::rsqrt>(each<op::add>(each<op::mul>(squares, 1.0f / hidden), epsilon));
}

// Each value is read once and kept in registers: kItems packs per thread must cover the row.
template <class Place, class Prologue, class Epilogue>
ONEKERNEL_DEVICE void normalise(const Place& place, float epsilon, Prologue prologue, Epilogue epilogue) {
  typename Place::Item x[Place::kItems];
  typename Place::Statistic total{};
#pragma unroll
  for (int item = 0; item < Place::kItems; ++item) x[item] = prologue(place.at(item));
#pragma unroll
  for (int item = 0; item < Place::kItems; ++item)
    if (place.at(item).inside) total = each<op::add>(total, Place::fold(x[item]));
  const auto mean = each<op::mul>(place.template sum<0>(total), 1.0f / place.hidden);

  typename Place::Statistic squares{};
#pragma unroll
  for (int item = 0; item < Place::kItems; ++item) {
    x[item] = each<op::sub>(x[item], mean);
    if (place.at(item).inside) squares = each<op::add>(squares, Place::fold(each<op::square>(x[item])));
  }
  const auto scale = inverse_deviation(place.template sum<1>(squares), place.hidden, epsilon);

#pragma unroll
  for (int item = 0; item < Place::kItems; ++item) epilogue(place.at(item), each<op::mul>(x[item], scale));
  place.finish();
}

// For rows too long for registers: values are computed again in each of three passes, from cache when it fits.
template <class Place, class Prologue, class Epilogue>
ONEKERNEL_DEVICE void normalise_looped(const Place& place, float epsilon, Prologue prologue, Epilogue epilogue) {
  const auto reread = [&](int item) {
    auto at = place.at(item);
    at.writes = false;  // only the last pass stores what the prologue stores
    return prologue(at);
  };
  typename Place::Statistic total{};
#pragma unroll 2
  for (int item = 0; item < place.items(); ++item)
    if (place.at(item).inside) total = each<op::add>(total, Place::fold(reread(item)));
  const auto mean = each<op::mul>(place.template sum<0>(total), 1.0f / place.hidden);

  typename Place::Statistic squares{};
#pragma unroll 2
  for (int item = 0; item < place.items(); ++item) {
    const auto centred = each<op::sub>(reread(item), mean);
    if (place.at(item).inside) squares = each<op::add>(squares, Place::fold(each<op::square>(centred)));
  }
  const auto scale = inverse_deviation(place.template sum<1>(squares), place.hidden, epsilon);

#pragma unroll 2
  for (int item = 0; item < place.items(); ++item) {
    const auto at = place.at(item);
    epilogue(at, each<op::mul>(each<op::sub>(prologue(at), mean), scale));
  }
  place.finish();
}
