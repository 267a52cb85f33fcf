module github.com/binnacle-mesh/binnacle/scripts/tools/sbom

go 1.26.0

require github.com/CycloneDX/cyclonedx-go v0.11.0
