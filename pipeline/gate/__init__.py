"""The client side: follow the throttle topic and wait while throttled. A library, and an HTTP side-car."""
