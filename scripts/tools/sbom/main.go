// Command sbom writes a CycloneDX 1.6 document (a software bill of materials) for
// programs: the Go modules that the linker recorded in each, with their versions and
// checksums, and the Go release. The document has no time and no random serial number,
// so that equal programs have equal documents.
package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// own is the prefix of the paths of this repository's modules. They have the release's
// version and are not listed separately.
const own = "github.com/binnacle-mesh/binnacle"

func main() {
	version := flag.String("version", "", "version of the release")
	flag.Usage = func() { fmt.Fprintln(os.Stderr, "usage: sbom -version VERSION PROGRAM…") }
	flag.Parse()
	if *version == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*version, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// run writes the document for the programs to standard output. The components and
// dependencies are sorted by reference.
func run(version string, programs []string) error {
	modules := map[string]cdx.Component{}        // components by BOM reference
	needs := map[string]map[string]bool{own: {}} // BOM references of the dependencies of each component, by its BOM reference
	slices.Sort(programs)
	for _, path := range programs {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		name := filepath.Base(path)
		program := "program:" + name
		needs[own][program] = true
		if needs[program] == nil {
			needs[program] = map[string]bool{}
		}
		modules[program] = cdx.Component{BOMRef: program, Type: cdx.ComponentTypeApplication, Name: name, Version: version}
		std := cdx.Component{Type: cdx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion, PackageURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}
		std.BOMRef = std.PackageURL
		modules[std.BOMRef], needs[program][std.BOMRef] = std, true
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			if strings.HasPrefix(m.Path, own) || strings.HasPrefix(m.Path, ".") {
				continue
			}
			c := cdx.Component{Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: "pkg:golang/" + m.Path + "@" + m.Version}
			c.BOMRef = c.PackageURL
			if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) == 32 {
				c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
			}
			modules[c.BOMRef], needs[program][c.BOMRef] = c, true
		}
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{BOMRef: own, Type: cdx.ComponentTypeApplication, Name: "binnacle", Version: version, PackageURL: "pkg:golang/" + own + "@" + version}}
	var components []cdx.Component
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		components = append(components, modules[ref])
	}
	var dependencies []cdx.Dependency
	for _, ref := range slices.Sorted(maps.Keys(needs)) {
		on := slices.Sorted(maps.Keys(needs[ref]))
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &on})
	}
	bom.Components, bom.Dependencies = &components, &dependencies
	e := cdx.NewBOMEncoder(os.Stdout, cdx.BOMFileFormatJSON)
	e.SetPretty(true)
	return e.EncodeVersion(bom, cdx.SpecVersion1_6)
}
