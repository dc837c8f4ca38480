// Keep probabilities and draws by them. A block takes each draw: scores are a few thousand numbers,
// and a second launch would cost more than a second multiprocessor saves.
#pragma once

#include "kernels/device/math.cuh"
#include "kernels/device/reduce.cuh"

namespace vcas::VCAS_DEVICE {

// body(i) for this thread's share of [0, n), in one block.
template <class Body>
__device__ inline void for_each_candidate(int n, const Body& body) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) body(i);
}

// body(i, inside) for every i of [0, n) rounded up to whole rounds of the block, so that all
// threads meet in each round.
template <class Body>
__device__ inline void in_rounds(int n, const Body& body) {
  const int step = static_cast<int>(blockDim.x);
  for (int first = 0; first < n; first += step) {
    const int i = first + static_cast<int>(threadIdx.x);
    body(i, i < n);
  }
}

// p = min(1, c score) with the sum `budget`: starting from c = budget / (sum of all), scores with
// c score >= 1 are capped and c is found again for the others, until none is new. Each round caps
// more, and typically there are three to six. Sums are in double, of scores relative to the
// largest. Returns the thread's share of the variance. A thread sets prob[i] for the i that
// `in_rounds` gives it.
template <class T>
__device__ double keep_probability(T* prob, const T* score, int n, double budget) {
  double own = 0;
  for_each_candidate(n, [&](int i) {
    if (isfinite(score[i])) own = max(own, static_cast<double>(score[i]));
  });
  const double largest = block_reduce(own, 0.0, Maximum{});
  const auto relative = [&](int i) {
    return isfinite(score[i]) && score[i] > 0 ? static_cast<double>(score[i]) / largest : 0.0;
  };
  int own_nonzero = 0, own_not_finite = 0;
  for_each_candidate(n, [&](int i) {
    own_nonzero += relative(i) > 0;
    own_not_finite += !isfinite(score[i]);
  });
  budget = max(budget - block_sum(own_not_finite), 0.0);
  const bool all = budget >= static_cast<double>(block_sum(own_nonzero));

  double scale = 0;
  int capped = -1;
  for (bool changed = !all; changed;) {
    double own_sum = 0;
    int own_capped = 0;
    for_each_candidate(n, [&](int i) {
      const double x = relative(i);
      if (capped >= 0 && scale * x >= 1)
        ++own_capped;
      else
        own_sum += x;
    });
    const int now_capped = block_sum(own_capped);
    const double sum = block_sum(own_sum);
    // Where the capped use up the budget, the others are too small to be seen in the sum.
    changed = now_capped > capped && now_capped < budget;
    if (!changed) break;
    capped = now_capped;
    scale = (budget - capped) / sum;
  }

  double own_variance = 0;
  for_each_candidate(n, [&](int i) {
    double p = all && relative(i) > 0 ? 1 : min(1.0, scale * relative(i));
    if (!isfinite(score[i])) p = 1;
    prob[i] = static_cast<T>(p);
    const double x = static_cast<double>(score[i]);
    if (p > 0) own_variance += (1 - p) / p * x * x;
  });
  return own_variance;
}

// Scores that only the device can count: the first *filled of them, each with its budget.
struct Candidates {
  const std::int64_t* filled;
  int n;
  double budget;
  bool whole;

  __device__ int count() const { return filled ? static_cast<int>(*filled) : n; }
  __device__ double budget_of_all() const {
    return filled ? budget_of(budget, *filled, whole) : budget;
  }
};

template <class T>
struct Kept {
  std::int32_t* index;
  T* scale;
  std::int32_t* count;
};
template <class T>
struct Drawing {
  Kept<T> kept;
  int count;  // of a systematic draw, at most
  T* prob;
  const T* score;
  const std::int32_t* id;
  Candidates of;
  StepKey key;
};

template <class T>
__device__ void draw_bernoulli(const Drawing<T>& draw) {
  const Kept<T>& kept = draw.kept;
  const PhiloxAddress address = draw.key.address();
  const int n = draw.of.count();
  keep_probability(draw.prob, draw.score, n, draw.of.budget_of_all());
  const T* prob = draw.prob;
  int count = 0;
  in_rounds(n, [&](int i, bool inside) {
    bool keep = false;
    if (inside) {
      const Words words = philox_words(address, static_cast<std::uint64_t>(at(draw.id, i)));
      keep = static_cast<T>(uniform_from_bits(words.word[0])) < prob[i];
    }
    const Scan<int> place = block_scan<int>(keep, 0, Plus{});
    if (keep) {
      kept.index[count + place.exclusive] = i;
      kept.scale[count + place.exclusive] = T(1) / prob[i];
    }
    count += place.total;
  });
  if (threadIdx.x == 0) *kept.count = count;
}

// With S the running sum, index i is drawn where floor(S + u) rises; the running sum of the last
// index that can be drawn is `total`, an integer where the sum is one up to rounding. A fractional
// sum draws its floor or its ceiling of indices. The first free ones fill the count up.
template <class T>
__device__ void draw_systematic(const Drawing<T>& draw) {
  const Kept<T>& kept = draw.kept;
  const PhiloxAddress address = draw.key.address();
  const int n = draw.of.count();
  const double budget = draw.of.budget_of_all();
  const int count = draw.of.filled ? min(static_cast<int>(budget), n) : draw.count;
  if (kept.count && threadIdx.x == 0) *kept.count = count;
  keep_probability(draw.prob, draw.score, n, budget);
  const T* prob = draw.prob;
  double own = 0;
  int own_last = -1;
  for_each_candidate(n, [&](int i) {
    own += static_cast<double>(prob[i]);
    if (prob[i] > 0) own_last = i;
  });
  const double sum = block_sum(own);
  const int last = block_reduce(own_last, -1, Maximum{});
  VCAS_KERNEL_CHECK(sum >= 0 && sum < n + 1.0, "probabilities out of range");
  const double rounding = 1e-6 * sum, whole = ceil(sum - rounding);
  const double total = whole - sum <= rounding ? whole : sum;
  const double u = static_cast<double>(uniform_from_bits(philox_words(address, 0).word[0]));

  // take(i, drawn, drawn before i). The sum over the block adds in another order at each index, so
  // it may fall by a rounding error; its running maximum does not.
  const auto walk = [&](const auto& take) {
    double running = 0, highest = 0;
    int drawn_before = 0;
    in_rounds(n, [&](int i, bool inside) {
      const Scan<double> added =
          block_scan(inside ? static_cast<double>(prob[i]) : 0.0, 0.0, Plus{});
      double reached = running + added.inclusive;
      if (i >= last) reached = total;
      const Scan<double> risen = block_scan(reached, 0.0, Maximum{});
      const double before = i == 0 ? 0 : floor(max(highest, risen.exclusive) + u);
      const double after = floor(max(highest, risen.inclusive) + u);
      const bool drawn = inside && i <= last && prob[i] > 0 && after > before;
      const Scan<int> place = block_scan<int>(drawn, 0, Plus{});
      if (inside) take(i, drawn, drawn_before + place.exclusive);
      running += added.total;
      highest = max(highest, risen.total);
      drawn_before += place.total;
    });
    return drawn_before;
  };
  const int free = max(count - walk([](int, bool, int) {}), 0);
  walk([&](int i, bool drawn, int before) {
    const int others = i - before;  // not drawn before i: the first `free` of them fill up
    const int place = before + min(others, free);
    if ((!drawn && others >= free) || place >= count) return;
    kept.index[place] = i;
    kept.scale[place] = drawn ? T(1) / prob[i] : T(0);
  });
}

template <Selection kSelection, class T>
__device__ void draw_by(const Drawing<T>& draw) {
  if constexpr (kSelection == Selection::kBernoulli)
    draw_bernoulli(draw);
  else
    draw_systematic(draw);
}

}  // namespace vcas::VCAS_DEVICE
