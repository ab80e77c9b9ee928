"""The HTTP methods of read-only routes."""

from litestar.enums import HttpMethod

READ = (HttpMethod.GET, HttpMethod.HEAD)
