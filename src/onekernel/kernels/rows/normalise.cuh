// Row-wise standardisation, (x - mean) / sqrt(variance + epsilon), and the frame that puts a chain around it.
//
// A place (rows/place.cuh) says who holds what. A row that fits is held in registers and goes through
//   hold         load operands, compute the values that are normalised; load what comes after them
//   standardize  the two reductions
//   transform    scale, shift, activate
//   store        write a result; apart from the loads, so that no load has to wait behind a store
// Statistics are float and two-pass (mean first, then squares of differences), which keeps their relative error
// near float epsilon whatever the mean (Chan, Golub, LeVeque 1983, section 2).
#pragma once
#include "rows/place.cuh"

// What a thread keeps of its row: a value for each of its positions.
template <class Value, int kItems>
struct Held {
  Value at[kItems];

  template <class Position>
  ONEKERNEL_DEVICE const Value& operator[](const Position& position) const {
    return at[position.item];
  }
};

template <class Place, class Function>
ONEKERNEL_DEVICE auto hold(const Place& place, Function value) {
  Held<decltype(value(place.at(0))), Place::kItems> row;
#pragma unroll
  for (int item = 0; item < Place::kItems; ++item) row.at[item] = value(place.at(item));
  return row;
}

template <class Place, class Row, class Function>
ONEKERNEL_DEVICE void transform(const Place& place, Row& row, Function value) {
#pragma unroll
  for (int item = 0; item < Place::kItems; ++item) row.at[item] = value(place.at(item), row.at[item]);
}

template <class Place, class T, class Row>
ONEKERNEL_DEVICE void store(const Place& place, T* full, const Row& row) {
#pragma unroll
  for (int item = 0; item < Place::kItems; ++item) place.at(item).store(full, row.at[item]);
}

template <class Statistic>
ONEKERNEL_DEVICE Statistic inverse_deviation(const Statistic& squares, int hidden, float epsilon) {
  return each<op::rsqrt>(each<op::add>(each<op::mul>(squares, 1.0f / hidden), epsilon));
}

template <class Place, class Row>
ONEKERNEL_DEVICE void standardize(const Place& place, Row& row, float epsilon) {
  typename Place::Statistic total{}, squares{};
#pragma unroll
  for (int item = 0; item < Place::kItems; ++item)
    if (place.at(item).inside) total = each<op::add>(total, Place::fold(row.at[item]));
  const auto mean = each<op::mul>(place.template sum<0>(total), 1.0f / place.hidden);
#pragma unroll
  for (int item = 0; item < Place::kItems; ++item) {
    row.at[item] = each<op::sub>(row.at[item], mean);
    if (place.at(item).inside) squares = each<op::add>(squares, Place::fold(each<op::square>(row.at[item])));
  }
  const auto scale = inverse_deviation(place.template sum<1>(squares), place.hidden, epsilon);
#pragma unroll
  for (int item = 0; item < Place::kItems; ++item) row.at[item] = each<op::mul>(row.at[item], scale);
}

// For rows too long for registers: the prologue computes the values again in each of three passes, from cache when
// the row fits there; the epilogue gets the normalised values and stores its results itself.
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
}
