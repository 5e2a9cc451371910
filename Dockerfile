# Serve a model over HTTP:
#   docker build -t clearhead .
#   docker run -p 8000:8000 -e CLEARHEAD_API_KEY=secret clearhead
#   docker run -p 8000:8000 -e CLEARHEAD_API_KEY=secret -v "$PWD/run/best:/model:ro" clearhead /model
FROM python:3.12-slim

RUN useradd --create-home clearhead
WORKDIR /app
COPY . .
# For an image without GPU libraries, pass PyTorch's CPU wheel index: --build-arg TORCH_INDEX=URL
ARG TORCH_INDEX=
RUN pip install --no-cache-dir --constraint constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch \
    && pip install --no-cache-dir --constraint constraints.txt .

USER clearhead
EXPOSE 8000
HEALTHCHECK --interval=30s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://localhost:8000/health')"]
ENTRYPOINT ["clearhead", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["story"]
