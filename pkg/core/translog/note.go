package translog

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// Checkpoint is the content of a signed tree head in the form of C2SP tlog-checkpoint.
// Extensions are the lines after the root hash; those of this project have the form
// "name value".
type Checkpoint struct {
	Origin     string
	Size       uint64
	Root       Hash
	Extensions []string
}

// Text returns the text of the note that its signatures cover: one line each for
// origin, size, root in base64, and every extension.
func (c *Checkpoint) Text() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n%d\n%s\n", c.Origin, c.Size, base64.StdEncoding.EncodeToString(c.Root[:]))
	for _, e := range c.Extensions {
		b.WriteString(e + "\n")
	}
	return b.Bytes()
}

// Extension returns the value of the first extension line with this name, or ""
// if there is none.
func (c *Checkpoint) Extension(name string) string {
	for _, e := range c.Extensions {
		if v, ok := strings.CutPrefix(e, name+" "); ok {
			return v
		}
	}
	return ""
}

// noteKeyID returns the key id of an Ed25519 key in a C2SP signed note: the first
// four bytes of SHA-256(name ‖ "\n" ‖ 0x01 ‖ public key).
func noteKeyID(name string, public []byte) uint32 {
	h := sha256.Sum256(append([]byte(name+"\n\x01"), public...))
	return binary.BigEndian.Uint32(h[:])
}

// Sign returns the checkpoint as a C2SP signed note with one signature. The name
// in the signature line is the checkpoint's origin.
func (c *Checkpoint) Sign(key *sign.Key) []byte {
	text := c.Text()
	sig := binary.BigEndian.AppendUint32(nil, noteKeyID(c.Origin, key.Public()))
	sig = append(sig, key.Raw(text)...)
	return fmt.Appendf(nil, "%s\n— %s %s\n", text, c.Origin, base64.StdEncoding.EncodeToString(sig))
}

// plain reports whether text is UTF-8 without ASCII control characters other than
// newlines, as C2SP signed-note requires.
func plain(text []byte) bool {
	return utf8.Valid(text) && bytes.IndexFunc(text, func(r rune) bool { return r < 0x20 && r != '\n' || r == 0x7f }) < 0
}

var errNote = errors.New("checkpoint: not a C2SP signed note of one signature")

// ParseNote reads a note with exactly one signature, and verifies the signature
// with the Ed25519 key public. It returns an error for any other note, and for a
// text that Checkpoint.Text would not produce. Cosignature lines must be removed
// before.
func ParseNote(note, public []byte) (*Checkpoint, error) {
	text := NoteText(note)
	if text == nil || !plain(text) {
		return nil, errNote
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if len(lines) < 3 || lines[0] == "" {
		return nil, errNote
	}
	if err := verifyNote(note[len(text)+1:], text, lines[0], public); err != nil {
		return nil, err
	}
	size, err := strconv.ParseUint(lines[1], 10, 64)
	if err != nil || strconv.FormatUint(size, 10) != lines[1] {
		return nil, errNote
	}
	root, err := sign.Base64(lines[2])
	if err != nil || len(root) != 32 {
		return nil, errNote
	}
	return &Checkpoint{Origin: lines[0], Size: size, Root: Hash(root), Extensions: lines[3:]}, nil
}

// verifyNote verifies the part of a note after its text and the empty line. This must be
// one line with origin's signature over text by the key public.
func verifyNote(tail, text []byte, origin string, public []byte) error {
	line, ok := strings.CutPrefix(string(tail), "— "+origin+" ")
	line, ended := strings.CutSuffix(line, "\n")
	raw, err := sign.Base64(line)
	if !ok || !ended || err != nil || len(raw) != 4+64 {
		return errNote
	}
	if binary.BigEndian.Uint32(raw) != noteKeyID(origin, public) {
		return errors.New("checkpoint: signed by another key")
	}
	if err := sign.VerifyRaw(public, text, raw[4:]); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}
