# Everything comes from the distribution; nothing is fetched.
find_package(nlohmann_json 3.11 REQUIRED)
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
find_package(fmt 9 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(Threads REQUIRED)
if(VCAS_OPENMP)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()
