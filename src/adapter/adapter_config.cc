#include "adapter/adapter_config.h"
