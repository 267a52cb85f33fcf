package containerd

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/arch/arm64/arm64asm"
)

// TestLauncherARM64 compares the launcher for arm64, instruction by instruction, with the
// listing in testdata, so that the code is also checked on other machines.
func TestLauncherARM64(t *testing.T) {
	want, err := os.ReadFile("testdata/launcher_arm64.txt")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for at := 0; at < len(launcherARM64); at += 4 {
		inst, err := arm64asm.Decode(launcherARM64[at:])
		if err != nil {
			t.Fatalf("byte %d: %v", at, err)
		}
		fmt.Fprintf(&got, "%02x %s\n", at, arm64asm.GNUSyntax(inst))
	}
	if got.String() != string(want) {
		t.Errorf("got:\n%s", &got)
	}
}

// TestStartMessage checks which command lines startMessage refuses, and that a message
// has the format that the comment on the launcher describes.
func TestStartMessage(t *testing.T) {
	if _, err := startMessage([]string{"/a", "b\x00c"}, nil); err == nil {
		t.Error("a zero byte was accepted")
	}
	if _, err := startMessage([]string{"/a"}, []string{strings.Repeat("x", launcherMax)}); err == nil {
		t.Error("a message larger than the memory was accepted")
	}
	got, err := startMessage([]string{"/a", "b"}, []string{"C=d"})
	if err != nil {
		t.Fatal(err)
	}
	le := func(vs ...byte) []byte {
		var out []byte
		for _, v := range vs {
			out = append(out, v, 0, 0, 0, 0, 0, 0, 0)
		}
		return out
	}
	at := func(off byte) []byte { return []byte{off, 0, 0x60, 0, 0, 0, 0, 0} }
	want := slices.Concat(le(73), at(24), at(48), at(64), at(67), le(0), at(69), le(0), []byte("/a\x00b\x00C=d\x00"))
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}
