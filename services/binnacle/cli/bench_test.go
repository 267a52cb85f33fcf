package cli

import (
	"io"
	"testing"
)

func BenchmarkVersion(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		execute(b.Context(), []string{"version"}, nil, io.Discard, io.Discard)
	}
}

func BenchmarkRoot(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		newRoot(&env{out: io.Discard, errOut: io.Discard})
	}
}
