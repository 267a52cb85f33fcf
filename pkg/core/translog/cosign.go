package translog

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/sign"
)

// A cosignature (C2SP tlog-cosignature, version 1) is the statement of a witness
// that, at the stated time, this checkpoint was consistent with every earlier
// checkpoint of the log that the witness had cosigned. Its line follows the
// note's text like any other signature line:
//
//	— <name> base64(key id ‖ unix time, 8 bytes ‖ Ed25519 signature)
//
// The signature is over "cosignature/v1\ntime <unix time>\n" followed by the
// note's text.

var errCosignature = errors.New("cosignature: does not verify")

// cosignKeyID returns the key id of a cosignature: like that of a note's
// signature, but with the type byte 0x04 (C2SP tlog-cosignature).
func cosignKeyID(name string, public []byte) uint32 {
	h := sha256.Sum256(append([]byte(name+"\n\x04"), public...))
	return binary.BigEndian.Uint32(h[:])
}

// cosigned returns the message that a cosignature signs.
func cosigned(text []byte, unix uint64) []byte {
	return append(fmt.Appendf(nil, "cosignature/v1\ntime %d\n", unix), text...)
}

// NoteText returns a copy of the part of a signed note that its signatures cover: the
// text before the first empty line, with its final newline. It returns nil if note has
// no empty line and thus no signatures.
func NoteText(note []byte) []byte {
	text, _, ok := bytes.Cut(note, []byte("\n\n"))
	if !ok {
		return nil
	}
	return append(bytes.Clone(text), '\n')
}

// Cosign returns a witness's signature line over a signed note, without a newline. unix
// is the time of the statement in seconds. The caller must have checked that the note is
// consistent with the checkpoints that this witness cosigned before.
func Cosign(note []byte, name string, key *sign.Key, unix uint64) string {
	raw := binary.BigEndian.AppendUint32(nil, cosignKeyID(name, key.Public()))
	raw = binary.BigEndian.AppendUint64(raw, unix)
	raw = append(raw, key.Raw(cosigned(NoteText(note), unix))...)
	return "— " + name + " " + base64.StdEncoding.EncodeToString(raw)
}

// VerifyCosignature returns the time in unix seconds at which the named witness
// cosigned the note. It returns an error unless line is a cosignature of note by
// the key public under that name.
func VerifyCosignature(note []byte, line, name string, public []byte) (unix uint64, err error) {
	text, ok := strings.CutPrefix(line, "— "+name+" ")
	raw, err := sign.Base64(text)
	body := NoteText(note)
	if !ok || err != nil || len(raw) != 4+8+64 || body == nil || binary.BigEndian.Uint32(raw) != cosignKeyID(name, public) {
		return 0, errCosignature
	}
	unix = binary.BigEndian.Uint64(raw[4:])
	if sign.VerifyRaw(public, cosigned(body, unix), raw[12:]) != nil {
		return 0, errCosignature
	}
	return unix, nil
}
