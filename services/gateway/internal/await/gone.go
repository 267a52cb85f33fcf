package await

import "errors"

// ErrGone is wrapped by the error of a Sink whose client has disconnected.
var ErrGone = errors.New("the reader of the response has left")

func isGone(err error) bool { return errors.Is(err, ErrGone) }
