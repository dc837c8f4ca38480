#include "data/image_folder.h"

#include <algorithm>

#include "core/safetensors.h"
#include "data/data_kind.h"
#include "data/image_file.h"
#include "tests/data/data_files.h"
#ifdef VCAS_JPEG
#include "tests/support/encode_jpeg.h"
#endif
#ifdef VCAS_PNG
#include <spng.h>
#endif

using namespace vcas;
namespace fs = std::filesystem;

namespace {

#ifdef VCAS_JPEG
// An image of one colour, which JPEG keeps to a level or two; four numbers are CMYK.
Bytes jpeg(int height, int width, const Bytes& colour) {
  Bytes pixels;
  for (int i = 0; i < height * width; ++i)
    pixels.insert(pixels.end(), colour.begin(), colour.end());
  return encode_jpeg(pixels, height, width, 1);
}

bool is_near(std::uint8_t pixel, int want) { return std::abs(pixel - want) <= 2; }

// train/b, train/a.b with images of several sizes, val/b alone.
class SmallFolder : public DataFolder {
 public:
  SmallFolder() {
    for (const char* name :
         {"train/b/deep", "train/b/.deep", "train/a.b", "train/.hidden", "val/b"})
      fs::create_directories(path() / name);
    write("train/b/2.JPEG", jpeg(20, 30, {200, 0, 0}));
    write("train/b/10.jpg", jpeg(9, 8, {0, 200, 0}));
    write("train/b/deep/1.jpg", jpeg(8, 8, {0, 0, 200}));
    write("train/a.b/x.jpg", jpeg(16, 16, {100, 100, 100}));
    write("train/b/.3.jpg", {});
    write("train/b/.deep/1.jpg", {});
    write("train/b/notes.txt", {});
    write("train/.hidden/1.jpg", {});
    write("train/1.jpg", {});
    write("val/b/1.jpg", jpeg(8, 8, {10, 20, 30}));
  }
  std::unique_ptr<Dataset> load(const std::string& part = "train",
                                const std::vector<std::string>& classes = {}) const {
    return checked(std::nullopt, part, classes).data;
  }
  ImageFolder checked(const std::optional<ImageCheck>& check, const std::string& part = "train",
                      const std::vector<std::string>& classes = {}) const {
    return load_image_folder(
        {.folder = path(),
         .part = part,
         .classes = classes,
         .transform = {.size = 8, .mean = {0, 0, 0}, .std = {1 / 255.f, 1 / 255.f, 1 / 255.f}},
         .check = check});
  }
};
#endif

}  // namespace

#ifdef VCAS_JPEG
TEST_CASE("JPEG files become pixels, of CMYK too", "[images]") {
  const DataFolder folder;
  const DecodedImage image = read_image(folder.write("a.jpg", jpeg(5, 7, {250, 130, 20})));
  CHECK(image.height == 5);
  CHECK(image.width == 7);
  REQUIRE(image.pixels.size() == 105);
  for (std::size_t i = 0; i < 105; i += 3)
    CHECK((is_near(image.pixels[i], 250) && is_near(image.pixels[i + 1], 130) &&
           is_near(image.pixels[i + 2], 20)));
  // Inverted: 255 is no ink.
  const DecodedImage inks = read_image(folder.write("b.jpg", jpeg(8, 8, {255, 128, 64, 128})));
  REQUIRE(inks.pixels.size() == 192);
  CHECK(
      (is_near(inks.pixels[0], 128) && is_near(inks.pixels[1], 64) && is_near(inks.pixels[2], 32)));
}

TEST_CASE("the pixels of a JPEG file are Pillow's, bit for bit", "[images]") {
  const std::string golden = std::string(VCAS_SOURCE_DIR) + "/tests/golden/images/colours.";
  const DecodedImage image = read_image(golden + "jpg");
  const SafetensorsFile file(golden + "safetensors");
  const StoredTensor& want = *file.find("pixels");
  CHECK(want.shape == std::vector<std::int64_t>{image.height, image.width, 3});
  CHECK(std::equal(image.pixels.begin(), image.pixels.end(), want.bytes.begin(), want.bytes.end(),
                   [](std::uint8_t a, std::byte b) { return std::byte{a} == b; }));
}

TEST_CASE("a JPEG file of a later revision, or of rare subsampling, is read", "[images]") {
  const DataFolder folder;
  Bytes grey = jpeg(8, 24, {128, 128, 128});
  const auto find = [&](std::initializer_list<std::uint8_t> bytes) {
    const auto at = std::search(grey.begin(), grey.end(), bytes.begin(), bytes.end());
    REQUIRE(at != grey.end());
    return at;
  };
  find({'J', 'F', 'I', 'F', 0})[5] = 2;
  const std::vector<std::uint8_t> pixels = read_image(folder.write("later.jpg", grey)).pixels;
  CHECK(pixels == std::vector<std::uint8_t>(3 * 8 * 24, 128));
  const Bytes half(grey.begin(), grey.end() - 4);
  check_error([&] { read_image(folder.write("half.jpg", half)); }, ExitCode::kBadData,
              "Premature end of JPEG file");
  // The last coefficient of a sequential scan, as some phones have it.
  const auto last = find({0xFF, 0xDA}) + 12;
  REQUIRE(*last == 63);
  *last = 0;
  CHECK(read_image(folder.write("phone.jpg", grey)).pixels == pixels);
  *last = 63;
  Bytes inks = jpeg(8, 8, {255, 128, 64, 128});
  const Bytes printed = read_image(folder.write("inks.jpg", inks)).pixels;
  constexpr std::string_view kAdobe = "Adobe";
  const auto transform = std::search(inks.begin(), inks.end(), kAdobe.begin(), kAdobe.end()) + 11;
  REQUIRE(*transform == 2);
  *transform = 7;  // of which nothing is known
  CHECK(read_image(folder.write("inks.jpg", inks)).pixels == printed);
  // One unit of three blocks of Y beside each other and one of either colour, by Y's codes: all
  // differ from the one before by 0.
  const auto frame = find({0xFF, 0xC0});
  frame[11] = 0x31;
  frame[14] = frame[17] = 0x11;
  const auto scan = find({0xFF, 0xDA});
  scan[6] = scan[8] = scan[10] = 0;
  grey.erase(scan + 14, grey.end());
  grey.insert(grey.end(), {0x28, 0xA2, 0x8A, 0x2B, 0xFF, 0xD9});
  CHECK(read_image(folder.write("rare.jpg", grey)).pixels == pixels);
}

TEST_CASE("bad image files are refused with their path", "[images]") {
  const DataFolder folder;
  const auto check_bad = [&](const Bytes& bytes, const std::string& text) {
    const fs::path path = folder.write("a.jpg", bytes);
    check_error([&] { read_image(path); }, ExitCode::kBadData, path.string() + ": " + text);
  };
  const Bytes whole = jpeg(64, 64, {1, 2, 3});
  check_bad(Bytes(whole.begin(), whole.end() - 20), "Premature end of JPEG file");
  check_bad(Bytes(whole.begin(), whole.begin() + 100), "");
  check_bad({}, "its 0 bytes do not begin as a JPEG or PNG file does");
  check_bad({'G', 'I', 'F', '8', '9', 'a'}, "its 6 bytes do not begin");
  Bytes huge = whole;  // the sizes follow the marker of the frame
  for (std::size_t i = 0; i + 9 < huge.size(); ++i)
    if (huge[i] == 0xFF && huge[i + 1] == 0xC0) std::fill_n(huge.begin() + i + 5, 4, 0xFA);
  check_bad(huge, "an image of 64250 x 64250 pixels");
  Bytes between(whole.begin(), whole.end() - 2);  // six bytes before the marker of the end
  between.resize(between.size() + 6, 7);
  between.insert(between.end(), whole.end() - 2, whole.end());
  CHECK(read_image(folder.write("b.jpg", between)).pixels ==
        read_image(folder.write("c.jpg", whole)).pixels);
  check_error([&] { read_image(folder.path() / "none.jpg"); }, ExitCode::kNoInput, "none.jpg");
}

TEST_CASE("a folder of images has a class for each sub-folder, all sorted", "[images]") {
  const SmallFolder folder;
  const auto data = folder.load();
  CHECK(data->class_names() == std::vector<std::string>{"a.b", "b"});
  CHECK(data->item_shape() == std::vector<std::int64_t>{3, 8, 8});
  REQUIRE(data->size() == 4);
  const float colours[4][3] = {{100, 100, 100}, {0, 200, 0}, {200, 0, 0}, {0, 0, 200}};
  for (std::int64_t item = 0; item < 4; ++item) {
    CHECK(data->label(item) == (item > 0));
    Batch batch;
    data->append(item, {}, batch);
    REQUIRE(batch.values.size() == 192);
    for (std::size_t channel = 0; channel < 3; ++channel)
      CHECK(std::abs(batch.values[64 * channel + 30] - colours[item][channel]) < 3);
  }
  const auto test = folder.load("val", data->class_names());
  CHECK(test->size() == 1);
  CHECK(test->label(0) == 1);
}

TEST_CASE("the fingerprint of an image folder is of the names and sizes in it", "[images]") {
  const SmallFolder folder;
  const auto hash = [&] { return folder.load()->sources().at(0).hash; };
  const std::uint64_t before = hash();
  CHECK(hash() == before);
  folder.write("train/b/2.JPEG", jpeg(60, 60, {200, 0, 0}));
  const std::uint64_t other_size = hash();
  CHECK(other_size != before);
  fs::rename(folder.path() / "train/b/10.jpg", folder.path() / "train/b/11.jpg");
  CHECK(hash() != other_size);
}

TEST_CASE("an image that changes between two readings is refused, though its size stays",
          "[images]") {
  const SmallFolder folder;
  const Bytes image = jpeg(8, 8, {10, 20, 30});
  const auto write = [&](std::uint8_t behind) {  // its end
    Bytes bytes = image;
    bytes.push_back(behind);
    folder.write("train/b/10.jpg", bytes);
  };
  const auto read = [](const Dataset& data, std::int64_t item) {
    Batch batch;
    data.append(item, {}, batch);
  };
  write(1);
  const auto data = folder.load();
  for (int time = 0; time < 2; ++time)
    for (const std::int64_t item : {0, 1}) read(*data, item);
  const std::string hashes = data->sources().at(0).contents->hashes();
  REQUIRE(hashes.size() == 4 * FolderContents::kBytes);
  CHECK(hashes.substr(2 * FolderContents::kBytes) == std::string(16, '\0'));
  write(2);
  const auto check_changed = [&](const Dataset& of) {
    check_error([&] { read(of, 1); }, ExitCode::kBadData,
                "train/b/10.jpg: is not what this run has read before, here or on another rank");
  };
  check_changed(*data);
  read(*data, 0);
  // Another process goes on.
  const auto later = folder.load();
  later->sources().at(0).contents->expect(hashes);
  later->sources().at(0).contents->expect(std::string(hashes.size(), '\0'));
  CHECK(later->sources().at(0).contents->hashes() == hashes);
  read(*later, 0);
  read(*later, 2);  // nobody has read it before
  check_changed(*later);
  write(1);
  read(*later, 1);
}

TEST_CASE("an image folder that is not as expected is refused with what is wrong", "[images]") {
  const SmallFolder folder;
  const Error other = error_of([&] { folder.load("val", {"a", "c"}); });
  CHECK(other.code() == ExitCode::kBadData);
  CHECK_THAT(other.what(),
             ContainsSubstring("val: 1 of 1 classes are not those of the training data: b"));
  CHECK(other.hint() == "evaluation data may lack classes, but have no others");
  fs::create_directories(folder.path() / "train/c");
  check_error([&] { folder.load(); }, ExitCode::kBadData, "train: 1 classes without images: c");
  fs::create_symlink("nowhere.jpg", folder.path() / "train/c/1.jpg");
  check_error([&] { folder.load(); }, ExitCode::kNoInput, "train: 1 files cannot be read: ");
  fs::create_directories(folder.path() / "train/caf\xe9");
  check_error([&] { folder.load(); }, ExitCode::kBadData,
              ": the name of a class: byte 4 is not valid UTF-8");
  fs::remove_all(folder.path() / "val/b");
  check_error([&] { folder.load("val"); }, ExitCode::kBadData, "val: no folder in it");
  fs::remove_all(folder.path() / "val");
  const Error missing = error_of([&] { folder.load("val"); });
  CHECK(missing.code() == ExitCode::kNoInput);
  CHECK(missing.what() == (folder.path() / "val").string() + ": no such folder");
  CHECK_THAT(missing.hint(), ContainsSubstring((folder.path() / "val/cat/2.jpg").string() +
                                               "; data.validation_share=0.1 does without val"));
}

TEST_CASE("an empty class of evaluation images counts as missing", "[images]") {
  const SmallFolder folder;
  const std::vector<std::string> classes = {"a.b", "b"};
  for (const char* name : {"val/a.b", "val/old"}) fs::create_directories(folder.path() / name);
  const auto data = folder.load("val", classes);
  CHECK(data->class_names() == classes);
  REQUIRE(data->size() == 1);
  CHECK(data->label(0) == 1);
  fs::remove(folder.path() / "val/b/1.jpg");
  check_error([&] { folder.load("val", classes); }, ExitCode::kBadData,
              "val: 3 classes without images: a.b, b, old");
}

TEST_CASE("files that are no images of a class are counted, texts and lists are not", "[images]") {
  const SmallFolder folder;
  for (const char* name : {"train/b/4.webp", "train/b/deep/5.jpe", "train/b/boxes.XML",
                           "train/labels.csv", "val/b/2.gif", "val/b/.2.gif"})
    folder.write(name, {});
  const std::string path = folder.path().string();
  const ImageFolder images = folder.checked(std::nullopt);
  CHECK(images.data->size() == 4);
  CHECK(images.left_out ==
        std::vector{path + "/train/1.jpg", path + "/train/b/4.webp", path + "/train/b/deep/5.jpe"});

  const auto kind = part_kinds<DataKind>().at("image_folder").make();
  DataRequest request{.folder = folder.path(), .transform = {.size = 8}};
  const std::string images_are = "; images are .jpg, .jpeg and .png files in folders of classes";
  CHECK(kind->open(request).note == "3 files of " + path + "/train were left out, the first: " +
                                        path + "/train/1.jpg" + images_are);
  fs::create_directories(folder.path() / "test/b");
  request.split = Split::kTest;
  request.known_classes = {"a.b", "b"};
  const std::string two_folders =
      path + "/val is evaluated on, and " + path + "/test is not: data.image.eval_folder decides";
  CHECK(kind->open(request).note == two_folders + "; 1 files of " + path +
                                        "/val were left out, the first: " + path + "/val/b/2.gif" +
                                        images_are);
  fs::remove(folder.path() / "val/b/2.gif");
  CHECK(kind->open(request).note == two_folders);

  request.transform.mean = request.transform.std = {1, 1, 1};
  const OpenedData unlabelled = kind->open_unlabelled(request, {folder.path() / "val"}, {3, 8, 8});
  CHECK(unlabelled.items->class_names() == request.known_classes);
  CHECK(unlabelled.items->label(0) == -1);
  CHECK(unlabelled.files == std::vector{path + "/val/b/1.jpg"});
  check_error(
      [&] {
        kind->open_unlabelled(request, {folder.path() / "test"}, {3, 8, 8});
      },
      ExitCode::kNoInput, "test: no images in it");
  check_error(
      [&] {
        kind->open_unlabelled(request, {folder.path() / "none"}, {3, 8, 8});
      },
      ExitCode::kNoInput, "none: no such file or folder");
}

TEST_CASE("files of images are sorted, whatever the order of the file system", "[images]") {
  const DataFolder folder;
  for (int i = 0; i < 16; ++i)
    for (const char* ending : {".jpg", ".gif"})
      folder.write(std::to_string(10 + i * 7 % 16) + ending, {});
  const FolderFiles files = find_image_files(folder.path());
  REQUIRE((files.images.size() == 16 && files.others.size() == 16));
  CHECK(std::ranges::is_sorted(files.images));
  CHECK(std::ranges::is_sorted(files.others));
}

TEST_CASE("a check finds every bad image of a folder, and leaves them out where asked",
          "[images]") {
  const SmallFolder folder;
  std::int64_t last = 0, total = 0;
  ImageCheck check{.threads = 3, .progress = [&](std::int64_t done, std::int64_t of) {
                     CHECK(done == last + 1);
                     last = done;
                     total = of;
                   }};
  const ImageFolder good = folder.checked(check);
  CHECK(good.checked == 4);
  CHECK(last == 4);
  CHECK(total == 4);
  CHECK(good.skipped.empty());

  last = 0;
  folder.write("train/b/10.jpg", {'n', 'o'});
  folder.write("train/a.b/x.jpg", {});
  const Error bad = error_of([&] { folder.checked(check); });
  CHECK(bad.code() == ExitCode::kBadData);
  const std::string first = (folder.path() / "train/a.b/x.jpg").string() +
                            ": its 0 bytes do not begin as a JPEG or PNG file does";
  const std::string second = (folder.path() / "train/b/10.jpg").string() +
                             ": its 2 bytes do not begin as a JPEG or PNG file does";
  CHECK(bad.what() == "2 of 4 images are bad\n  " + first + "\n  " + second);
  CHECK_THAT(bad.hint(), ContainsSubstring("data.skip_bad_rows=true leaves them out"));

  check = {.threads = 2};  // ten are shown
  for (int i = 0; i < 8; ++i) folder.write("train/b/x" + std::to_string(i) + ".jpg", {});
  const std::string ten = error_of([&] { folder.checked(check); }).what();
  CHECK_THAT(ten, ContainsSubstring("10 of 12 images are bad\n") && !ContainsSubstring("..."));
  folder.write("train/b/x8.jpg", {});
  const std::string more = error_of([&] { folder.checked(check); }).what();
  CHECK_THAT(more, ContainsSubstring("11 of 13 images are bad\n") && ContainsSubstring("\n  ..."));
  for (int i = 0; i < 9; ++i)
    fs::remove(folder.path() / ("train/b/x" + std::to_string(i) + ".jpg"));

  check = {.skip = true, .threads = 2};
  const ImageFolder rest = folder.checked(check);
  CHECK(rest.skipped == std::vector<std::string>{first, second});
  CHECK(rest.checked == 4);
  REQUIRE(rest.data->size() == 2);
  CHECK(rest.data->label(0) == 1);
  folder.write("val/b/1.jpg", {});
  check_error([&] { folder.checked(check, "val"); }, ExitCode::kBadData, "1 of 1 images are bad");
}

TEST_CASE("evaluation images lie in val, else in folders of other names", "[images]") {
  const DataFolder folder;
  const auto check = [&](const std::vector<std::string>& parts) {
    CHECK(evaluation_parts(folder.path()) == parts);
  };
  check({"val"});
  fs::create_directories(folder.path() / "test/cat");
  check({"test"});
  fs::create_directories(folder.path() / "validation");
  check({"test"});  // the other is empty
  folder.write("validation/.gitkeep", {});
  check({"test"});
  fs::create_directories(folder.path() / "validation/cat");
  check({"validation", "test"});
  fs::create_directories(folder.path() / "val/cat");
  check({"val", "validation", "test"});
}

TEST_CASE("images of one channel are the luma of their colours", "[images]") {
  const DataFolder folder;
  const fs::path file = folder.write("a.jpg", jpeg(8, 8, {200, 100, 50}));
  const DecodedImage rgb = read_image(file);
  const ImageFilesDataset data({.files = {file.string()},
                                .labels = {-1},
                                .class_names = {},
                                .shape = {1, 8, 8},
                                .transform = {.mean = {0}, .std = {1 / 255.f}}});
  Batch batch;
  data.append(0, {}, batch);
  REQUIRE(batch.values.size() == 64);
  const double luma = 0.299 * rgb.pixels[0] + 0.587 * rgb.pixels[1] + 0.114 * rgb.pixels[2];
  CHECK(std::abs(batch.values[0] - luma) <= 0.51);
}
#endif

#ifdef VCAS_PNG
TEST_CASE("a PNG file of 16 bits gives its upper eight, grey as well as coloured", "[images]") {
  const std::string golden = std::string(VCAS_SOURCE_DIR) + "/tests/golden/images/grey16.";
  const DecodedImage image = read_image(golden + "png");
  const SafetensorsFile file(golden + "safetensors");
  const StoredTensor& want = *file.find("pixels");
  CHECK(want.shape == std::vector<std::int64_t>{image.height, image.width});
  REQUIRE(image.pixels.size() == 3 * want.bytes.size());
  for (std::size_t i = 0; i < image.pixels.size(); ++i)
    CHECK(std::byte{image.pixels[i]} == want.bytes[i / 3]);
}

TEST_CASE("PNG files become pixels, without their transparency", "[images]") {
  const DataFolder folder;
  const auto png = [&](const Bytes& pixels, std::uint8_t colour_type) {
    spng_ctx* encoder = spng_ctx_new(SPNG_CTX_ENCODER);
    spng_ihdr header{.width = 2, .height = 1, .bit_depth = 8, .color_type = colour_type};
    int status = spng_set_option(encoder, SPNG_ENCODE_TO_BUFFER, 1);
    REQUIRE(spng_set_ihdr(encoder, &header) == 0);
    REQUIRE(spng_encode_image(encoder, pixels.data(), pixels.size(), SPNG_FMT_PNG,
                              SPNG_ENCODE_FINALIZE) == 0);
    std::size_t size = 0;
    void* file = spng_get_png_buffer(encoder, &size, &status);
    const auto* begin = static_cast<const std::uint8_t*>(file);
    Bytes bytes(begin, begin + size);
    std::free(file);
    spng_ctx_free(encoder);
    return bytes;
  };
  const auto pixels_of = [&](const Bytes& file) {
    return read_image(folder.write("a.JPEG", file)).pixels;  // the name does not matter
  };
  CHECK(pixels_of(png({1, 2, 3, 200, 201, 202}, SPNG_COLOR_TYPE_TRUECOLOR)) ==
        Bytes{1, 2, 3, 200, 201, 202});
  CHECK(pixels_of(png({1, 2, 3, 0, 200, 201, 202, 9}, SPNG_COLOR_TYPE_TRUECOLOR_ALPHA)) ==
        Bytes{1, 2, 3, 200, 201, 202});
  CHECK(pixels_of(png({7, 255}, SPNG_COLOR_TYPE_GRAYSCALE)) == Bytes{7, 7, 7, 255, 255, 255});
  Bytes cut = png({1, 2, 3, 200, 201, 202}, SPNG_COLOR_TYPE_TRUECOLOR);
  cut.resize(cut.size() - 20);
  check_error([&] { pixels_of(cut); }, ExitCode::kBadData, "a.JPEG: ");
}
#endif

TEST_CASE("names say which files are images", "[images]") {
#ifdef VCAS_JPEG
  CHECK(has_image_name("a/b.jpg"));
  CHECK(has_image_name("a/b.JPEG"));
#else
  const Error lacking = error_of([] { has_image_name("a/b.jpg"); });
  CHECK(lacking.code() == ExitCode::kUnavailable);
  CHECK(lacking.what() == std::string("a/b.jpg: this build cannot read JPEG files"));
  CHECK(lacking.hint() == "apt-get install libjpeg-dev and build again");
#endif
  CHECK_FALSE(has_image_name("a/jpg"));
  CHECK_FALSE(has_image_name("a/b.jpg.txt"));
  CHECK(has_text_name("a/b.jpg.TXT"));
  CHECK_FALSE(has_text_name("a/txt"));
}
