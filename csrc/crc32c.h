// CRC32C, the checksum of iSCSI, ext4 and others: by the processor's instruction where it has one, else by a table.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chameleon {

uint32_t crc32c(const void* data, size_t bytes);
uint32_t crc32c_by_table(const void* data, size_t bytes);  // the same on any processor; for tests

}  // namespace chameleon
