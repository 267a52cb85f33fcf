# Makes the images of Dockerfile from programs that were built before. scripts/compose
# makes the build context with deploy/images/build --from bin.
FROM scratch
ARG PROGRAM
COPY --chown=65532:65532 owned /
COPY root /
COPY bin/${PROGRAM} /service
ENTRYPOINT ["/service"]
