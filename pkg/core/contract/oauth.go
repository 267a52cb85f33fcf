package contract

// The error codes of the token routes and of the authorization endpoint (RFC 6749
// sections 4.1.2.1 and 5.2, RFC 7591 section 3.2.2, RFC 8628 section 3.5, RFC 8707 section 2).
const (
	OAuthClient      = "invalid_client"
	OAuthDenied      = "access_denied"
	OAuthMetadata    = "invalid_client_metadata"
	OAuthPending     = "authorization_pending"
	OAuthExpired     = "expired_token"
	OAuthGrant       = "invalid_grant"
	OAuthRedirect    = "invalid_redirect_uri"
	OAuthRequest     = "invalid_request"
	OAuthResponse    = "unsupported_response_type"
	OAuthScope       = "invalid_scope"
	OAuthServer      = "server_error"
	OAuthTarget      = "invalid_target"
	OAuthUnavailable = "temporarily_unavailable"
	OAuthGrantType   = "unsupported_grant_type"
)
