"""The client side: follow the throttle topic, wait while throttled; as a library and as an HTTP side-car."""
