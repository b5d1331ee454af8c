# cmake --install: the program, its manual, shell completions, the demo model and the licence.
include(GNUInstallDirs)

# The completions come out of the program itself.
set(completions)
foreach(shell bash zsh fish)
  set(script ${PROJECT_BINARY_DIR}/completions/lockstep.${shell})
  add_custom_command(OUTPUT ${script} DEPENDS lockstep VERBATIM
                     COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/completions
                     COMMAND lockstep completion ${shell} > ${script})
  list(APPEND completions ${script})
endforeach()
add_custom_target(completions ALL DEPENDS ${completions})

install(TARGETS lockstep RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${PROJECT_SOURCE_DIR}/docs/man/lockstep.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${PROJECT_BINARY_DIR}/completions/lockstep.bash RENAME lockstep
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${PROJECT_BINARY_DIR}/completions/lockstep.zsh RENAME _lockstep
        DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${PROJECT_BINARY_DIR}/completions/lockstep.fish
        DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
# find_model() looks for it next to the program (cli/options.hpp).
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/demo DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep/models)
