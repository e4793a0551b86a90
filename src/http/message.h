// Messages of HTTP, without sockets: fields of a request and of an answer.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ridge::http {

/// True when the two are equal but for the case of ASCII letters.
bool same_name(std::string_view a, std::string_view b);

/// Fields in the order they came; names keep their case and are looked up without regard to it.
struct Headers {
  std::vector<std::pair<std::string, std::string>> fields;

  /// The first field of that name, or null.
  const std::string* find(std::string_view name) const;
  /// The first field of that name, or "".
  std::string_view get(std::string_view name) const;
  size_t count(std::string_view name) const;
  void add(std::string_view name, std::string_view value) { fields.emplace_back(name, value); }
};

struct Request {
  std::string method;  ///< as sent; methods are told apart by case
  std::string path;    ///< decoded, valid UTF-8, starts with '/', no NUL or control character, no "." or ".." segment
  std::vector<std::pair<std::string, std::string>> query;  ///< decoded names and values in order
  Headers headers;
  std::string body;     ///< complete; at most Limits::body_bytes
  std::string remote;   ///< address of the client, without its port
  bool http10 = false;  ///< HTTP/1.0: no chunks, and the connection ends with the answer unless the client keeps it

  /// The first query value of that name, or null.
  const std::string* param(std::string_view name) const;
};

/// A complete answer. The transport adds Content-Length, Date, Connection and the CORS fields.
struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  Headers headers = {};  ///< further fields; names and values without control characters
};

}  // namespace ridge::http
