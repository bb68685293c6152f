"""An NVIDIA GPU through the driver API. Nothing here runs before a device is asked for."""
