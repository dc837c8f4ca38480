// Norms over sets of rows: sums of pieces of the rows, statistics, then the rows themselves.
#include "kernels/cpu/compute.h"

namespace vcas {
namespace {

struct Piece {
  std::int64_t set, begin, end;
};

// The rows of each set, cut so that all threads have some.
class Pieces {
 public:
  Pieces(const CpuContext& cpu, const Tensor& offsets, std::int64_t sets, const Tensor& rows)
      : offsets_(offsets.ptr<std::int64_t>()),
        all_(rows.rows()),
        sets_(sets),
        each_(sets == 0 ? 0
                        : std::max<std::int64_t>(
                              cpu.slices_for(rows.rows(), rows.elements()) / sets, 1)) {}

  std::int64_t sets() const { return sets_; }
  std::int64_t size() const { return sets_ * each_; }
  std::int64_t first_of(std::int64_t set) const { return set * each_; }
  std::int64_t begin(std::int64_t set) const { return offsets_ ? offsets_[set] : set * all_; }
  std::int64_t rows(std::int64_t set) const { return begin(set + 1) - begin(set); }
  Piece operator[](std::int64_t i) const {
    const std::int64_t set = i / each_, part = i % each_;
    return {set, begin(set) + rows(set) * part / each_,
            begin(set) + rows(set) * (part + 1) / each_};
  }

  // Calls body(number, piece) for each.
  template <class Body>
  void run(const CpuContext& cpu, std::int64_t work, const Body& body) const {
    cpu.grains(size(), 1, work, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) body(i, (*this)[i]);
    });
  }

 private:
  const std::int64_t* offsets_;
  std::int64_t all_, sets_, each_;
};

// Workspace of both directions: two sums of each column of a piece, four numbers of each column of
// a set.
template <class T>
struct Space {
  Space(CpuContext& cpu, const Pieces& pieces, std::int64_t row_width)
      : width(row_width),
        sums(cpu.scratch<double>((pieces.size() * 2 + pieces.sets() * 4) * row_width)),
        columns(reinterpret_cast<T*>(sums + pieces.size() * 2 * row_width)) {
    std::fill_n(sums, pieces.size() * 2 * row_width, 0.0);
  }
  double* sum(std::int64_t piece) const { return sums + piece * 2 * width; }
  T* column(std::int64_t set, int which) const { return columns + (set * 4 + which) * width; }
  // The sums of a set are then at its first piece.
  void add_up(const Pieces& pieces) const {
    for (std::int64_t i = 0; i < pieces.size(); ++i) {
      const std::int64_t first = pieces.first_of(pieces[i].set);
      for (std::int64_t c = 0; i != first && c < 2 * width; ++c) sum(first)[c] += sum(i)[c];
    }
  }

  std::int64_t width;
  double* sums;
  T* columns;
};
enum { kCenter, kFactor, kShift, kSlope };

struct Statistics {
  double mean, variance;
};

// Statistics of the columns [first, first + count). Their sums over `rows` rows are of differences
// from a center.
template <class T>
Statistics statistics_of(const double* sums, const T* center, std::int64_t width,
                         std::int64_t first, std::int64_t count, std::int64_t rows) {
  const auto n = static_cast<double>(rows * count);
  double mean = 0, squares = 0;
  for (std::int64_t c = first; c < first + count; ++c)
    mean += (static_cast<double>(rows) * static_cast<double>(center[c]) + sums[c]) / n;
  for (std::int64_t c = first; c < first + count; ++c) {
    const double own = sums[c] / static_cast<double>(rows);
    const double apart = static_cast<double>(center[c]) + own - mean;
    squares += sums[width + c] + static_cast<double>(rows) * (apart * apart - own * own);
  }
  return {mean, std::max(squares / n, 0.0)};
}

template <class T>
void set_statistics(const GroupNormForward& args, const Pieces& pieces, const Space<T>& space) {
  const std::int64_t groups = args.mean.width(), width = args.x.width(), count = width / groups;
  for (std::int64_t set = 0; set < pieces.sets(); ++set) {
    const std::int64_t rows = pieces.rows(set);
    const T* center = args.x.ptr<T>() + pieces.begin(set) * width;
    for (std::int64_t g = 0; rows > 0 && g < groups; ++g) {
      const Statistics of =
          statistics_of(space.sum(pieces.first_of(set)), center, width, g * count, count, rows);
      args.mean.ptr<T>()[set * groups + g] = static_cast<T>(of.mean);
      args.rstd.ptr<T>()[set * groups + g] = static_cast<T>(1 / std::sqrt(of.variance + args.eps));
      if (!args.running_mean) continue;
      const auto n = static_cast<double>(rows * count);
      T& mean = args.running_mean.ptr<T>()[g];
      T& variance = args.running_var.ptr<T>()[g];
      const double unbiased = of.variance * n / std::max(n - 1, 1.0);
      mean += static_cast<T>(args.momentum * (of.mean - static_cast<double>(mean)));
      variance += static_cast<T>(args.momentum * (unbiased - static_cast<double>(variance)));
    }
  }
}

template <class T>
void take_given(const GroupNormForward& args) {
  for (std::int64_t g = 0; g < args.mean.width(); ++g) {
    args.mean.ptr<T>()[g] = args.given_mean.ptr<T>()[g];
    args.rstd.ptr<T>()[g] =
        static_cast<T>(1 / std::sqrt(static_cast<double>(args.given_var.ptr<T>()[g]) + args.eps));
  }
}

template <class T>
void forward(CpuContext& cpu, const GroupNormForward& args) {
  const std::int64_t width = args.x.width(), groups = args.mean.width(), count = width / groups;
  const Pieces pieces(cpu, args.offsets, args.mean.rows(), args.x);
  const Space<T> space(cpu, pieces, width);
  const Loops<T>& loops = cpu.loops<T>();
  const T* x = args.x.ptr<T>();
  if (args.given_mean) {
    take_given<T>(args);
  } else {
    pieces.run(cpu, args.x.elements(), [&](std::int64_t i, const Piece& piece) {
      loops.norm_sums(space.sum(i), space.sum(i) + width, x + piece.begin * width,
                      x + pieces.begin(piece.set) * width, piece.end - piece.begin, width);
    });
    space.add_up(pieces);
    set_statistics<T>(args, pieces, space);
  }
  for (std::int64_t set = 0; set < pieces.sets(); ++set)
    for (std::int64_t c = 0; c < width; ++c) {
      const std::int64_t g = set * groups + c / count;
      space.column(set, kCenter)[c] = args.mean.ptr<T>()[g];
      space.column(set, kFactor)[c] = args.rstd.ptr<T>()[g] * args.gamma.ptr<T>()[c];
    }
  pieces.run(cpu, args.x.elements(), [&](std::int64_t, const Piece& piece) {
    cpu.write_rows<T>(
        args.y, args.y_norm, piece.begin, piece.end, [&](std::int64_t begin, std::int64_t end) {
          loops.norm_apply(args.y.ptr<T>() + begin * width, x + begin * width,
                           space.column(piece.set, kCenter), space.column(piece.set, kFactor),
                           args.beta.ptr<T>(), end - begin, width);
        });
  });
}

template <class T>
struct SetStatistics {
  const T* mean;
  const T* rstd;
};
template <class T>
SetStatistics<T> statistics_of_set(const GroupNormBackward& args, std::int64_t set) {
  const auto* item = args.item.ptr<std::int32_t>();
  const std::int64_t at = args.mean_full.rows() == 1 ? 0 : item ? item[set] : set;
  const std::int64_t groups = args.mean_full.width();
  return {args.mean_full.ptr<T>() + at * groups, args.rstd_full.ptr<T>() + at * groups};
}

// dx = dy * factor - shift - (x - center) * slope
template <class T>
void set_columns(const GroupNormBackward& args, const Pieces& pieces, const Space<T>& space) {
  const std::int64_t width = args.dy.width(), groups = args.mean_full.width();
  const std::int64_t count = width / groups;
  const T* gamma = args.gamma.ptr<T>();
  for (std::int64_t set = 0; set < pieces.sets(); ++set) {
    const T* rstd = statistics_of_set<T>(args, set).rstd;
    const double* sums = space.sum(pieces.first_of(set));
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t rows = args.offsets ? pieces.rows(set) : args.x_full.rows();
      const auto n = static_cast<double>(std::max<std::int64_t>(rows, 1) * count);
      const auto scale = static_cast<double>(rstd[g]);
      double mean_g = 0, mean_gh = 0;
      for (std::int64_t c = g * count; !args.fixed && c < (g + 1) * count; ++c) {
        mean_g += static_cast<double>(gamma[c]) * sums[c] / n;
        mean_gh += static_cast<double>(gamma[c]) * sums[width + c] * scale / n;
      }
      for (std::int64_t c = g * count; c < (g + 1) * count; ++c) {
        space.column(set, kFactor)[c] = rstd[g] * gamma[c];
        space.column(set, kShift)[c] = static_cast<T>(scale * mean_g);
        space.column(set, kSlope)[c] = static_cast<T>(scale * scale * mean_gh);
      }
    }
  }
}

template <class T>
void set_parameters(const GroupNormBackward& args, const Pieces& pieces, const Space<T>& space) {
  const std::int64_t width = args.dy.width(), count = width / args.mean_full.width();
  for (std::int64_t c = 0; c < width; ++c) {
    double gamma = 0, beta = 0;
    for (std::int64_t set = 0; set < pieces.sets(); ++set) {
      const double* sums = space.sum(pieces.first_of(set));
      beta += sums[c];
      gamma +=
          sums[width + c] * static_cast<double>(statistics_of_set<T>(args, set).rstd[c / count]);
    }
    T& dgamma = args.dgamma.ptr<T>()[c];
    T& dbeta = args.dbeta.ptr<T>()[c];
    dgamma = static_cast<T>(gamma) + (args.accumulate_parameters ? dgamma : T(0));
    dbeta = static_cast<T>(beta) + (args.accumulate_parameters ? dbeta : T(0));
  }
}

// The rows of dx beyond those of dy.
template <class T>
void write_echoes(const CpuContext& cpu, const GroupNormBackward& args, const Space<T>& space) {
  const std::int64_t width = args.dx.width();
  const T* center = space.column(0, kCenter);
  const T *shift = space.column(0, kShift), *slope = space.column(0, kSlope);
  const T factor = -static_cast<T>(args.echo_scale);
  const auto write = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      T* dx = args.dx.ptr<T>() + r * width;
      const T* x = args.x_full.ptr<T>() + args.row.ptr<std::int32_t>()[r] * width;
      for (std::int64_t c = 0; c < width; ++c)
        dx[c] = factor * (shift[c] + (x[c] - center[c]) * slope[c]) +
                (args.added ? args.added.ptr<T>()[r * width + c] : T(0));
    }
  };
  cpu.write_rows<T>(args.dx, args.dx_norm, args.dy.rows(), args.dx.rows(), write);
}

template <class T>
void backward(CpuContext& cpu, const GroupNormBackward& args) {
  const std::int64_t width = args.dy.width(), count = width / args.mean_full.width();
  const Pieces pieces(cpu, args.offsets, args.sets(), args.dy);
  const Space<T> space(cpu, pieces, width);
  for (std::int64_t set = 0; set < pieces.sets(); ++set)
    for (std::int64_t c = 0; c < width; ++c)
      space.column(set, kCenter)[c] = statistics_of_set<T>(args, set).mean[c / count];
  const Loops<T>& loops = cpu.loops<T>();
  const T *dy = args.dy.ptr<T>(), *x = args.x_full.ptr<T>();
  const auto* row = args.row.ptr<std::int32_t>();
  pieces.run(cpu, args.dy.elements(), [&](std::int64_t i, const Piece& piece) {
    loops.norm_backward_sums(space.sum(i), space.sum(i) + width, dy, x,
                             space.column(piece.set, kCenter), row, piece.begin, piece.end, width);
  });
  space.add_up(pieces);
  if (args.dgamma) set_parameters<T>(args, pieces, space);
  if (!args.dx) return;
  set_columns<T>(args, pieces, space);
  pieces.run(cpu, args.dy.elements(), [&](std::int64_t, const Piece& piece) {
    cpu.write_rows<T>(
        args.dx, args.dx_norm, piece.begin, piece.end, [&](std::int64_t begin, std::int64_t end) {
          loops.norm_backward_apply(
              args.dx.ptr<T>(), args.added.ptr<T>(), dy, x, space.column(piece.set, kCenter),
              space.column(piece.set, kFactor), space.column(piece.set, kShift),
              space.column(piece.set, kSlope), row, begin, end, width);
        });
  });
  if (args.dx.rows() > args.dy.rows()) write_echoes<T>(cpu, args, space);
}

}  // namespace

void compute(CpuContext& cpu, const GroupNormForward& args) {
  with_type(args.x.dtype, [&](auto type) { forward<decltype(type)>(cpu, args); });
}

void compute(CpuContext& cpu, const GroupNormBackward& args) {
  with_type(args.dy.dtype, [&](auto type) { backward<decltype(type)>(cpu, args); });
}

}  // namespace vcas
