# Is the CUDA device built, and is it checked here? Sets with_cuda, cuda_sources and cuda_include_dir, and adds
#   check_cuda   compiles the CUDA device with every warning an error; nothing is linked (`make check-cuda`)
#   fake_cuda    the core on a CUDA runtime for tests (tests/fake_cuda), whose streams run in random legal order
#   fake_allocator  the core on a fake of torch's caching allocator, too

set(BUILD_CUDA AUTO CACHE STRING "Build the CUDA device: ON, OFF, or AUTO (where torch has CUDA)")
set_property(CACHE BUILD_CUDA PROPERTY STRINGS AUTO ON OFF)

file(GLOB cuda_sources CONFIGURE_DEPENDS device/cuda/*.cpp)
list(FILTER cuda_sources EXCLUDE REGEX "/absent\\.cpp$")

# CUDA's headers alone are needed: of a toolkit, or of pip's nvidia-cuda-runtime and nvidia-cuda-crt.
cmake_path(GET torch_dir PARENT_PATH site_packages)
file(GLOB cuda_candidates $ENV{CUDA_HOME}/include $ENV{CUDA_PATH}/include /usr/local/cuda/include
     ${site_packages}/nvidia/cu1*/include /usr/local/cuda-1*/include ${site_packages}/nvidia/cuda_runtime/include
     ${site_packages}/triton/backends/nvidia/include)
find_program(nvcc_program nvcc NO_CACHE)
if(nvcc_program)
  file(REAL_PATH ${nvcc_program} nvcc_program)
  cmake_path(GET nvcc_program PARENT_PATH nvcc_dir)
  list(PREPEND cuda_candidates ${nvcc_dir}/../include)
endif()
set(cuda_include_dir)
foreach(candidate ${cuda_candidates})
  if(NOT cuda_include_dir AND EXISTS ${candidate}/cuda_runtime_api.h AND EXISTS ${candidate}/crt/host_defines.h)
    set(cuda_include_dir ${candidate})
  endif()
endforeach()

set(with_cuda OFF)
set(missing "BUILD_CUDA=ON")
if(BUILD_CUDA)
  set(missing)
  if(NOT EXISTS ${torch_dir}/lib/libc10_cuda.so)
    set(missing "a torch with CUDA")
  elseif(NOT cuda_include_dir)
    set(missing "CUDA's headers (cuda_runtime_api.h), which were not found: set CUDA_HOME, or install nvidia-cuda-runtime and nvidia-cuda-crt")
  endif()
  if(NOT missing)
    set(with_cuda ON)
    message(NOTICE "    Building the CUDA device with the headers in ${cuda_include_dir}")
  elseif(BUILD_CUDA STREQUAL "AUTO")
    message(NOTICE "    Building without the CUDA device: it needs ${missing}")
  else()
    message(FATAL_ERROR "BUILD_CUDA is ${BUILD_CUDA}, but the CUDA device needs ${missing}")
  endif()
endif()

if(with_cuda)
  set(missing "a torch with CUDA")  # where a wheel's module without the device is loaded
endif()
set_property(SOURCE device/cuda/absent.cpp APPEND PROPERTY
  COMPILE_DEFINITIONS CHAMELEON_CUDA_MISSING="${missing}")

if(NOT cuda_include_dir)
  foreach(target check_cuda fake_cuda fake_allocator)
    add_custom_target(${target} COMMAND ${CMAKE_COMMAND} -E echo
      "Skipped: CUDA's headers were not found (pip install nvidia-cuda-runtime nvidia-cuda-crt brings them)" VERBATIM)
  endforeach()
  return()
endif()

# Compiled once for all of them: what stands in front of torch's allocator, which one fake leaves out, and the rest.
set(cuda_front_sources ${cuda_sources})
list(FILTER cuda_front_sources INCLUDE REGEX "torch_(allocator|callbacks)")
set(cuda_device_sources ${cuda_sources})
list(FILTER cuda_device_sources EXCLUDE REGEX "torch_(allocator|callbacks)")
foreach(part cuda_front cuda_device)
  add_library(${part} OBJECT EXCLUDE_FROM_ALL ${${part}_sources})
  set_target_properties(${part} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  # The CPU build of torch has the CUDA headers too, all but one that CMake makes.
  target_compile_definitions(${part} PRIVATE C10_CUDA_NO_CMAKE_CONFIGURE_FILE)
  target_compile_options(${part} PRIVATE -Werror)
  target_include_directories(${part} SYSTEM PRIVATE ${cuda_include_dir})
  target_link_libraries(${part} PRIVATE core_options)
endforeach()
add_custom_target(check_cuda DEPENDS cuda_front cuda_device)

set(fake_cuda_dir ${PROJECT_SOURCE_DIR}/tests/fake_cuda)
file(GLOB fake_cuda_sources CONFIGURE_DEPENDS ${fake_cuda_dir}/*.cpp)
Python_add_library(fake_cuda MODULE WITH_SOABI EXCLUDE_FROM_ALL ${fake_cuda_sources})
target_compile_options(fake_cuda PRIVATE -Werror)
target_include_directories(fake_cuda PRIVATE ${fake_cuda_dir})
target_include_directories(fake_cuda SYSTEM PRIVATE ${cuda_include_dir})
target_link_libraries(fake_cuda PRIVATE cuda_device core face core_options)
set_property(SOURCE ${fake_cuda_dir}/harness.cpp APPEND PROPERTY
  COMPILE_DEFINITIONS CUDA_INCLUDE_DIR="${cuda_include_dir}")
# Two Python modules in one library: chameleon_lab._C, and _fake_cuda to drive the fake.
set_target_properties(fake_cuda PROPERTIES
  OUTPUT_NAME _C SKIP_BUILD_RPATH ON LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fake_cuda)

# The same on a fake of torch's caching allocator, for what stands in front of that.
file(GLOB fake_allocator_sources CONFIGURE_DEPENDS ${fake_cuda_dir}/allocator/*.cpp)
Python_add_library(fake_allocator MODULE WITH_SOABI EXCLUDE_FROM_ALL
  ${fake_allocator_sources} ${fake_cuda_dir}/cudart.cpp ${fake_cuda_dir}/numa.cpp)
target_compile_definitions(fake_allocator PRIVATE C10_CUDA_NO_CMAKE_CONFIGURE_FILE)
target_compile_options(fake_allocator PRIVATE -Werror)
target_include_directories(fake_allocator PRIVATE ${fake_cuda_dir})
target_include_directories(fake_allocator SYSTEM PRIVATE ${cuda_include_dir})
target_link_libraries(fake_allocator PRIVATE cuda_front cuda_device core face core_options)
set_target_properties(fake_allocator PROPERTIES
  OUTPUT_NAME _C SKIP_BUILD_RPATH ON LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fake_allocator)
