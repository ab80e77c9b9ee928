"""What operators and routers ask: health, models, capabilities, the OpenAPI document."""
