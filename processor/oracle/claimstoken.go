package oracle

import (
	"encoding/base64"
	"fmt"
)

// claimToken has what a claim token identifies.
type claimToken struct {
	key     digest
	home    int32 // partition of the task that has the key
	first   position
	attempt uint64
}

// readToken parses a token: version 1 | namespace 1 | with version 2: app 8 | digest 16 | partition, position
// of the first event and attempt, uvarints | check 4.
func readToken(encoded string) (claimToken, error) {
	raw, err := base64.RawURLEncoding.DecodeString(encoded)
	if err == nil && len(raw) >= 30 && raw[0] == 2 { // version 2 has the app after the namespace
		raw = append(raw[:2:2], raw[10:]...)
	}
	if err != nil || len(raw) < 22 {
		return claimToken{}, fmt.Errorf("has an invalid token: %s", encoded)
	}
	rest := fields{rest: raw[18 : len(raw)-4]}
	token := claimToken{key: digest(raw[2:18]), home: int32(rest.unsigned(1 << 31))}
	token.first = position{uint16(rest.unsigned(1 << 16)), int32(rest.unsigned(1 << 31)), int64(rest.unsigned(1 << 63))}
	token.attempt = rest.unsigned(1 << 32)
	return token, nil
}
