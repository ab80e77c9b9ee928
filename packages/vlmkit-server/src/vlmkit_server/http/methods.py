"""How routes that only tell something are asked."""

from litestar.enums import HttpMethod

READ = (HttpMethod.GET, HttpMethod.HEAD)
