// Keep probabilities and draws by them. A block, or its first warp, takes each draw: scores are a
// few thousand numbers, and a second launch would cost more than a second multiprocessor saves.
#pragma once

#include "kernels/device/math.cuh"
#include "kernels/device/reduce.cuh"

namespace vcas::VCAS_DEVICE {

// body(i) for this thread's share of [0, n), in one block or another team.
template <class Team = BlockTeam, class Body>
__device__ inline void for_each_candidate(int n, const Body& body) {
  VCAS_UNROLL_BY(Team::kAtOnce)
  for (int i = Team::rank(); i < n; i += Team::size()) body(i);
}

// body(i, inside) for every i of [0, n), with n rounded up to whole rounds of the team. So all of
// its threads meet in each round.
template <class Team = BlockTeam, class Body>
__device__ inline void in_rounds(int n, const Body& body) {
  VCAS_NO_UNROLL
  for (int first = 0; first < n; first += Team::size()) {
    const int i = first + Team::rank();
    body(i, i < n);
  }
}

// One warp is faster with at most so many numbers than a block, which meets at barriers.
constexpr int kMostOfWarp = 8 * kWarp;

// The power of two that brings x to [1/2, 1), if it is no less than 2^-1000: a product with it is
// rounded only where it is denormal.
__device__ inline double scale_to_one(double x) {
  int exponent = 0;
  frexp(x, &exponent);
  return ldexp(1.0, -max(exponent, -1000));
}

// p = min(1, c score) with the sum `budget`. The first c is budget / (sum of all). A round caps the
// scores with c score >= 1, and finds c again for the others. Each round caps more, until none is
// new. Typically there are two to five rounds. Sums are in double. Scores of f64 are summed
// relative to the largest. Returns the thread's share of the variance. A thread sets prob[i] for
// the i that `for_each_candidate` gives it.
template <class Team, class T>
__device__ double keep_probability(T* prob, const T* score, int n, double budget) {
  double unit = 1;
  if constexpr (sizeof(T) > sizeof(float)) {
    double own = 0;
    for_each_candidate<Team>(n, [&](int i) {
      if (isfinite(score[i])) own = max(own, score[i]);
    });
    unit = scale_to_one(Team::reduce(own, 0.0, Maximum{}));
  }
  const auto relative = [&](int i) {
    return isfinite(score[i]) && score[i] > 0 ? static_cast<double>(score[i]) * unit : 0.0;
  };
  using Counts = Pair<int, int>;  // scores that are not zero, and those that are not finite
  Pair<double, Counts> all{};
  for_each_candidate<Team>(n, [&](int i) {
    const double x = relative(i);
    all.first += x;
    all.second.first += x > 0;
    all.second.second += !isfinite(score[i]);
  });
  all = Team::reduce(all, Pair<double, Counts>{}, Each<Plus, Each<Plus, Plus>>{});
  budget = max(budget - all.second.second, 0.0);
  const bool keeps_all = budget >= static_cast<double>(all.second.first);

  double scale = 0;
  Pair<double, int> before{all.first, 0};  // the sum of those that are not capped, how many are
  VCAS_NO_UNROLL
  while (!keeps_all) {
    scale = (budget - before.second) / before.first;
    Pair<double, int> found{};
    for_each_candidate<Team>(n, [&](int i) {
      const double x = relative(i);
      const bool cap = scale * x >= 1;
      found.first += cap ? 0 : x;
      found.second += cap;
    });
    found = Team::reduce(found, Pair<double, int>{}, Each<Plus, Plus>{});
    // Rounding may uncap one. Where the capped use up the budget, the others are too small to be
    // seen in the sum.
    if (found.second <= before.second || found.second >= budget) break;
    before = found;
  }

  double own_variance = 0;
  for_each_candidate<Team>(n, [&](int i) {
    const double relative_score = relative(i);
    double p = relative_score > 0 ? (keeps_all ? 1 : min(1.0, scale * relative_score)) : 0;
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

  // How many a systematic draw keeps.
  __device__ int kept_by_system() const {
    return of.filled ? min(static_cast<int>(of.budget_of_all()), of.count()) : count;
  }
};

// The uniform number of a systematic draw.
__device__ inline float uniform_of(const PhiloxAddress& address) {
  return uniform_from_bits(philox_words(address, 0).word[0]);
}

// Candidates that one warp draws from, and what it keeps, in shared memory: it comes back to them
// many times.
template <class T>
struct FewCandidates {
  T score[kMostOfWarp], prob[kMostOfWarp], scale[kMostOfWarp];
  std::int32_t kept[kMostOfWarp];
};

template <class T>
__device__ void draw_bernoulli(const Drawing<T>& draw) {
  const Kept<T>& kept = draw.kept;
  const PhiloxAddress address = draw.key.address();
  const int n = draw.of.count();
  keep_probability<BlockTeam>(draw.prob, draw.score, n, draw.of.budget_of_all());
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

// With S the running sum of prob, index i is drawn where floor(S + u) rises. At the last index that
// can be drawn S is `total`: the sum, or the integer that the sum is up to rounding. A fractional
// sum draws its floor or its ceiling of indices. The first indices not drawn fill the count up. A
// thread has consecutive indices. uniform() gives u, once the probabilities are there.
template <class Team, class T, class Uniform>
__device__ void draw_systematic_by(const Drawing<T>& draw, const Uniform& uniform) {
  const Kept<T>& kept = draw.kept;
  const int n = draw.of.count(), count = draw.kept_by_system();
  if (kept.count && Team::rank() == 0) *kept.count = count;
  keep_probability<Team>(draw.prob, draw.score, n, draw.of.budget_of_all());
  Team::meet();  // all of prob is written
  const T* prob = draw.prob;
  const int each = (n + Team::size() - 1) / Team::size();
  const int begin = min(Team::rank() * each, n), end = min(begin + each, n);
  double own = 0;
  int last = -1;  // that can be drawn
  VCAS_UNROLL_BY(Team::kAtOnce)
  for (int i = begin; i < end; ++i) {
    own += static_cast<double>(prob[i]);
    if (prob[i] > 0) last = i;
  }
  last = Team::reduce(last, -1, Maximum{});
  const Scan<double> sums = Team::scan(own, 0.0, Plus{});
  const double first = sums.exclusive, sum = sums.total;
  VCAS_KERNEL_CHECK(sum >= 0 && sum < n + 1.0, "probabilities out of range");
  const double rounding = 1e-6 * sum, whole = ceil(sum - rounding);
  const double total = whole - sum <= rounding ? whole : sum;
  const double u = static_cast<double>(uniform());

  // The scan of the team adds in another order for each thread. So its sum may fall from one thread
  // to the next, by a rounding error. The running maximum does not.
  const double highest = Team::scan(first + own, 0.0, Maximum{}).exclusive;
  // take(i, whether it is drawn)
  const auto walk = [&](const auto& take) {
    double part = 0, most = highest;
    VCAS_UNROLL_BY(Team::kAtOnce)
    for (int i = begin; i < end; ++i) {
      part += static_cast<double>(prob[i]);  // added as in `own`: the next thread goes on from it
      const double before = i == 0 ? 0 : floor(most + u);
      most = max(most, i >= last ? total : first + part);
      take(i, i <= last && prob[i] > 0 && floor(most + u) > before);
    }
  };
  int own_drawn = 0;
  walk([&](int, bool drawn) { own_drawn += drawn; });
  const Scan<int> drawn_of = Team::scan(own_drawn, 0, Plus{});
  const int free = max(count - drawn_of.total, 0);
  int before = drawn_of.exclusive;
  walk([&](int i, bool drawn) {
    const int others = i - before;  // not drawn before i: the first `free` of them fill up
    const int place = before + min(others, free);
    before += drawn;
    if ((!drawn && others >= free) || place >= count) return;
    kept.index[place] = i;
    kept.scale[place] = drawn ? T(1) / prob[i] : T(0);
  });
}

// By one warp. Scores are in `few`, and what is kept will be there too.
template <class T, class Uniform>
__device__ void draw_few(const Drawing<T>& draw, FewCandidates<T>& few, const Uniform& uniform) {
  Drawing<T> own = draw;
  own.score = few.score;
  own.prob = few.prob;
  own.kept.index = few.kept;
  own.kept.scale = few.scale;
  draw_systematic_by<WarpTeam>(own, uniform);
  __syncwarp();  // all of it is there
  for_each_candidate<WarpTeam>(draw.of.count(), [&](int i) { draw.prob[i] = few.prob[i]; });
  for_each_candidate<WarpTeam>(draw.kept_by_system(), [&](int i) {
    draw.kept.index[i] = few.kept[i];
    draw.kept.scale[i] = few.scale[i];
  });
}

// A block draws, or its first warp where candidates are few.
template <class T>
__device__ void draw_systematic(const Drawing<T>& draw) {
  const PhiloxAddress address = draw.key.address();  // on its way
  const auto uniform = [&] { return uniform_of(address); };
  if (draw.of.count() > kMostOfWarp) return draw_systematic_by<BlockTeam>(draw, uniform);
  VCAS_SHARED(FewCandidates<T>, few);
  if (threadIdx.x >= kWarp) return;
  for_each_candidate<WarpTeam>(draw.of.count(), [&](int i) { few.score[i] = draw.score[i]; });
  draw_few(draw, few, uniform);
}

template <Selection kSelection, class T>
__device__ void draw_by(const Drawing<T>& draw) {
  if constexpr (kSelection == Selection::kBernoulli)
    draw_bernoulli(draw);
  else
    draw_systematic(draw);
}

}  // namespace vcas::VCAS_DEVICE
