"""The hooks of vlmkit-ray: the config table ``[ray]``. Imports nothing heavy."""

from vlmkit_ray.settings import RaySettings

VLMKIT_API = (1, 0)
VLMKIT_TABLES = {"ray": RaySettings}
