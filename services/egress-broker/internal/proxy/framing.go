package proxy

import (
	"bytes"
	"errors"
	"strconv"
	"strings"

	"github.com/binnacle-mesh/binnacle/pkg/core/netrule"
)

// framing follows the messages of an HTTP/1 connection and refuses bytes that two programs may
// read in different ways (RFC 9112, sections 2.2, 5.2, 6.3 and 7.1). It is stricter than net/http,
// which parses the same bytes afterwards: lines end with CR LF; fields are not folded; a message
// has at most one Host field, and Content-Length or chunks but not both; a chunk has no extension.
type framing struct {
	maxHead int
	check   func(*head) netrule.Reason // of the target and the Host field

	state   state
	left    int64 // bytes of a body or chunk, or of the trailers that are still possible
	scanned int   // bytes of an incomplete head that were examined
}

type state int

const (
	inHead    state = iota
	inBody          // of known length
	inSize          // line of a chunk's size
	inChunk         // data of a chunk
	inEnd           // line end after a chunk
	inTrailer       // trailer fields
	inTunnel        // after CONNECT or an upgrade: no HTTP
)

var errMalformed = &failure{RequestInvalid, errors.New("malformed request")}

// head is the parsed head of a request.
type head struct {
	method, target, version string
	host                    []string // values of Host
	upgrade                 bool     // to the WebSocket protocol
}

// direct returns how many of the next bytes may be passed on without a check, because they
// belong to a body, a chunk or a tunnel. It returns 0 if the next bytes must be passed to
// accept.
func (f *framing) direct() int64 {
	switch f.state {
	case inTunnel:
		return 1 << 62
	case inBody, inChunk:
		return f.left
	}
	return 0
}

// passed updates the state after n bytes, at most direct(), have been passed on.
func (f *framing) passed(n int) {
	if f.state == inTunnel {
		return
	}
	if f.left -= int64(n); f.left > 0 {
		return
	}
	if f.state == inChunk {
		f.state = inEnd
	} else {
		f.state = inHead
	}
}

// accept returns how many bytes at the beginning of in may be passed on; 0 if it needs
// more bytes. It returns a *failure for bytes that are not allowed.
func (f *framing) accept(in []byte) (int, error) {
	if n := f.direct(); n > 0 {
		k := int(min(n, int64(len(in))))
		f.passed(k)
		return k, nil
	}
	switch f.state {
	case inHead:
		return f.head(in)
	case inSize:
		return f.size(in)
	case inEnd:
		if len(in) < 2 {
			return 0, nil
		}
		if !bytes.HasPrefix(in, crlf) {
			return 0, errMalformed
		}
		f.state = inSize
		return 2, nil
	}
	return f.trailer(in)
}

var crlf = []byte("\r\n")

// head accepts the head of a request as a whole, and returns 0 until it is
// complete.
func (f *framing) head(in []byte) (int, error) {
	from := max(0, f.scanned-3)
	end := bytes.Index(in[from:], []byte("\r\n\r\n"))
	examined := len(in)
	if end >= 0 {
		examined = from + end
	}
	for i := f.scanned; i < examined; i++ {
		if in[i] == '\n' && (i == 0 || in[i-1] != '\r') {
			return 0, errMalformed
		}
	}
	if f.scanned = len(in); end < 0 {
		if len(in) > f.maxHead {
			return 0, &failure{RequestInvalid, errors.New("the head of the request is too long")}
		}
		return 0, nil
	}
	end += from
	f.scanned = 0
	if err := f.readHead(string(in[:end])); err != nil {
		return 0, err
	}
	return end + 4, nil
}

// readHead checks a head without its empty line, and sets the state for the bytes after it.
func (f *framing) readHead(text string) error {
	line, rest, _ := strings.Cut(text, "\r\n")
	h := &head{}
	var ok bool
	if h.method, line, ok = strings.Cut(line, " "); !ok || !token(h.method) {
		return errMalformed
	}
	if h.target, h.version, ok = strings.Cut(line, " "); !ok || h.target == "" || h.version != "HTTP/1.1" && h.version != "HTTP/1.0" {
		return errMalformed
	}
	if strings.ContainsFunc(h.target, func(r rune) bool { return r <= ' ' || r > '~' || r == '#' || r == '\\' }) {
		return errMalformed
	}
	fields, err := readFields(rest)
	if err != nil {
		return err
	}
	h.host = fields["host"]
	if len(h.host) > 1 || len(h.host) == 0 && h.version == "HTTP/1.1" {
		return errMalformed
	}
	h.upgrade = websocket(h.method, fields["upgrade"], fields["connection"])
	if why := f.check(h); why != "" {
		return &failure{why, errors.New("the target of the request is not allowed on this connection")}
	}
	return f.body(h, fields)
}

// body sets the state according to the length of the body. If it returns an error, the
// state is unchanged.
func (f *framing) body(h *head, fields map[string][]string) error {
	length, coding := fields["content-length"], fields["transfer-encoding"]
	if len(length)+len(coding) > 1 {
		return errMalformed
	}
	switch tunnel := h.method == "CONNECT" || h.upgrade; {
	case tunnel && (len(length) > 0 && length[0] != "0" || len(coding) > 0):
		return errMalformed
	case tunnel:
		f.state = inTunnel
	case len(coding) > 0:
		if !equalFold(coding[0], "chunked") || h.version != "HTTP/1.1" {
			return errMalformed
		}
		f.state = inSize
	case len(length) > 0:
		if strings.Trim(length[0], "0123456789") != "" {
			return errMalformed
		}
		n, err := strconv.ParseInt(length[0], 10, 62)
		if err != nil {
			return errMalformed
		}
		if f.left = n; n > 0 {
			f.state = inBody
		}
	}
	return nil
}

// readFields returns the values of header fields by their names in lower case.
func readFields(text string) (map[string][]string, error) {
	fields := map[string][]string{}
	if text == "" {
		return fields, nil
	}
	for line := range strings.SplitSeq(text, "\r\n") {
		name, value, ok := strings.Cut(line, ":")
		if !ok || !token(name) {
			return nil, errMalformed // also for a folded line and for a blank before the colon
		}
		value = strings.Trim(value, " \t")
		for i := range len(value) {
			if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
				return nil, errMalformed
			}
		}
		name = strings.ToLower(name)
		fields[name] = append(fields[name], value)
	}
	return fields, nil
}

// maxSize is the maximum number of hexadecimal digits of a chunk's size.
const maxSize = 15

func (f *framing) size(in []byte) (int, error) {
	n := bytes.IndexByte(in[:min(len(in), maxSize+2)], '\n')
	if n < 0 {
		if len(in) >= maxSize+2 {
			return 0, errMalformed
		}
		return 0, nil
	}
	digits, ok := bytes.CutSuffix(in[:n+1], crlf)
	if !ok || len(digits) == 0 || strings.Trim(string(digits), "0123456789abcdefABCDEF") != "" {
		return 0, errMalformed
	}
	size, err := strconv.ParseInt(string(digits), 16, 62)
	if err != nil {
		return 0, errMalformed
	}
	if f.left, f.state = size, inChunk; size == 0 {
		f.left, f.state = int64(f.maxHead), inTrailer
	}
	return n + 1, nil
}

// trailer accepts one line of the trailer section, and returns 0 until it is
// complete.
func (f *framing) trailer(in []byte) (int, error) {
	n := bytes.IndexByte(in, '\n')
	if n < 0 {
		if int64(len(in)) > f.left {
			return 0, errMalformed
		}
		return 0, nil
	}
	line, ok := bytes.CutSuffix(in[:n+1], crlf)
	if f.left -= int64(n) + 1; !ok || f.left < 0 {
		return 0, errMalformed
	}
	if len(line) == 0 {
		f.state = inHead
		return n + 1, nil
	}
	fields, err := readFields(string(line))
	if err != nil {
		return 0, err
	}
	for _, name := range []string{"content-length", "transfer-encoding", "host", "trailer", "connection", "upgrade", "authorization"} {
		if fields[name] != nil {
			return 0, errMalformed
		}
	}
	return n + 1, nil
}

// websocket reports whether a request is one for the WebSocket protocol (RFC 6455, 4.1).
func websocket(method string, upgrade, connection []string) bool {
	if method != "GET" || len(upgrade) != 1 || !equalFold(upgrade[0], "websocket") {
		return false
	}
	for _, v := range connection {
		for option := range strings.SplitSeq(v, ",") {
			if equalFold(strings.TrimSpace(option), "upgrade") {
				return true
			}
		}
	}
	return false
}

// equalFold reports whether s is a token that equals word without regard to case. Unlike
// strings.EqualFold, it does not accept the sign for kelvin (U+212A) as a k.
func equalFold(s, word string) bool { return token(s) && strings.EqualFold(s, word) }

// token reports whether s is a token of RFC 9110, section 5.6.2.
func token(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}
