"""HTTP server: OpenAI-compatible API, endpoints of other tasks, and the web page."""
