package contract

// The error codes of the token routes (RFC 6749 sections 4.1.2.1 and 5.2, RFC 8628 section 3.5).
const (
	OAuthDenied      = "access_denied"
	OAuthPending     = "authorization_pending"
	OAuthExpired     = "expired_token"
	OAuthGrant       = "invalid_grant"
	OAuthRequest     = "invalid_request"
	OAuthServer      = "server_error"
	OAuthUnavailable = "temporarily_unavailable"
	OAuthGrantType   = "unsupported_grant_type"
)
