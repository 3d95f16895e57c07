# Plug-ins for GPUs, loaded at run time: bin/libadafloor_cuda.so where nvcc is found, and
# bin/libadafloor_nccl.so where NCCL is, too. Nothing else links CUDA. Sets ADAFLOOR_CUDA_PLUGIN to
# ON or OFF; bin/ptxas.txt is the assembler's report of registers and spills.
set(ADAFLOOR_CUDA_PLUGIN OFF)
if(ADAFLOOR_CUDA STREQUAL "OFF")
  message(STATUS "CUDA plug-in: not built (ADAFLOOR_CUDA is OFF)")
  return()
elseif(ADAFLOOR_SANITIZE)
  message(STATUS "CUDA plug-in: not built (sanitizers)")
  return()
endif()
find_program(NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT NVCC)
  message(STATUS "CUDA plug-in: not built (no nvcc in PATH, CUDA_HOME or /usr/local/cuda)")
  return()
endif()

# Code for these architectures, as far as this nvcc knows them.
execute_process(COMMAND "${NVCC}" --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
set(codes)
foreach(arch 80 90 100)
  if(known MATCHES "compute_${arch}")
    list(APPEND codes -gencode "arch=compute_${arch},code=sm_${arch}")
    list(APPEND arches ${arch})
  endif()
endforeach()
if(NOT codes)
  message(STATUS "CUDA plug-in: not built (${NVCC} knows none of sm_80, sm_90, sm_100)")
  return()
endif()
message(STATUS "CUDA plug-in: ${NVCC} for sm_80, sm_90, sm_100 as known: ${arches}")
set(ADAFLOOR_CUDA_PLUGIN ON)

# -fmad=false: only what is written as fused is fused, as on the CPU.
set(plugin "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/libadafloor_cuda.so")
set(object "${CMAKE_BINARY_DIR}/cuda_launcher.o")
set(report "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/ptxas.txt")
set(compile ${CMAKE_CXX_COMPILER_LAUNCHER} "${NVCC}" -c "${CMAKE_CURRENT_SOURCE_DIR}/gpu/cuda_launcher.cu"
    -o "${object}" -MD -MF "${object}.d" -std=c++17 -O3 -fmad=false "-I${CMAKE_CURRENT_SOURCE_DIR}"
    "-I${EXPECTED_INCLUDE_DIR}" -ccbin "${CMAKE_CXX_COMPILER}" -Werror all-warnings
    -Xcompiler -Wall,-Wextra,-Werror,-fPIC -Xptxas -v ${codes})
list(JOIN compile "' '" compile)
add_custom_command(
  OUTPUT "${plugin}" "${report}"
  COMMAND sh -c "'${compile}' 2> '${report}' || { cat '${report}' >&2; exit 1; }"
  COMMAND "${NVCC}" -shared -cudart static -ccbin "${CMAKE_CXX_COMPILER}" "${object}" -o "${plugin}"
  DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/gpu/cuda_launcher.cu"
  DEPFILE "${object}.d"
  COMMENT "Building the CUDA plug-in" JOB_POOL compile VERBATIM)
add_custom_target(adafloor_cuda ALL DEPENDS "${plugin}")
install(FILES "${plugin}" DESTINATION lib/adafloor)

get_filename_component(cuda_home "${NVCC}" REALPATH)
get_filename_component(cuda_home "${cuda_home}/../.." ABSOLUTE)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS "${cuda_home}/include")
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS "${cuda_home}/lib" "${cuda_home}/lib64")
find_library(CUDART_LIBRARY cudart_static HINTS "${cuda_home}/lib" "${cuda_home}/lib64")
if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY AND CUDART_LIBRARY)
  add_library(adafloor_nccl MODULE gpu/nccl_fabric.cpp)
  set_target_properties(adafloor_nccl PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  target_include_directories(adafloor_nccl PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}" "${EXPECTED_INCLUDE_DIR}")
  target_include_directories(adafloor_nccl SYSTEM PRIVATE "${cuda_home}/include" "${NCCL_INCLUDE_DIR}")
  target_link_libraries(adafloor_nccl PRIVATE ${NCCL_LIBRARY} ${CUDART_LIBRARY} Threads::Threads ${CMAKE_DL_LIBS} rt)
  install(TARGETS adafloor_nccl DESTINATION lib/adafloor)
  message(STATUS "NCCL plug-in: ${NCCL_LIBRARY}")
else()
  message(STATUS "NCCL plug-in: not built (no nccl.h, libnccl or libcudart_static)")
endif()
